"""Make Triton's interpreter compute with bf16 as the hardware does.

Left alone, the interpreter drops the low bits when it casts to bf16, where a GPU rounds to nearest, ties to even: that
doubles the error of every bf16 result. And in `tl.dot` it multiplies the bit patterns of bf16 matrices.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def mend_bf16() -> None:
    """Replace the interpreter's casts and dots of bf16 for the rest of this process; a second call changes nothing."""
    if getattr(InterpreterBuilder.cast_impl, "mended", False):
        return
    cast, dot = InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        match src.dtype.scalar, dst_type.scalar:
            case tl.float32, tl.bfloat16:
                return TensorHandle(to_bf16(src.data), tl.bfloat16)
            case tl.bfloat16, tl.float32:
                return TensorHandle(from_bf16(src.data), tl.float32)
        return cast(self, src, dst_type)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        # Products of two bf16 are exact in fp32, in which tensor cores add them.
        a, b = (
            TensorHandle(from_bf16(side.data), tl.float32) if side.dtype.scalar == tl.bfloat16 else side
            for side in (a, b)
        )
        return dot(self, a, b, *rest)

    cast_impl.mended = True  # type: ignore[attr-defined]
    InterpreterBuilder.cast_impl = cast_impl
    InterpreterBuilder.create_dot = create_dot


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest bf16, ties to even; a NaN stays a NaN, whatever its low bits."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    nearest = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, nearest).astype(np.uint16).reshape(np.shape(values))


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The values of bf16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
