"""Make Triton's interpreter cast between fp32 and bf16 as the hardware does.

The interpreter's own cast to bf16 drops the low bits, which doubles the error of every bf16 result; a GPU rounds to
nearest, ties to even. Its cast from bf16 is right, but slow enough to dominate an interpreted check.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def mend_casts() -> None:
    """Replace the interpreter's casts for the rest of this process; calling again changes nothing."""
    if getattr(InterpreterBuilder.cast_impl, "mended", False):
        return
    original = InterpreterBuilder.cast_impl

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        match src.dtype.scalar, dst_type.scalar:
            case tl.float32, tl.bfloat16:
                return TensorHandle(round_to_bf16(src.data), tl.bfloat16)
            case tl.bfloat16, tl.float32:
                return TensorHandle((src.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
        return original(self, src, dst_type)

    cast_impl.mended = True  # type: ignore[attr-defined]
    InterpreterBuilder.cast_impl = cast_impl


def round_to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest bf16, ties to even; a NaN stays a NaN, whatever its low bits."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    with np.errstate(over="ignore"):
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, nearest).astype(np.uint16).reshape(np.shape(values))
