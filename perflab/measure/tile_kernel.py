"""One TileLang source, three uses: native on a GPU, checked as C code on a CPU, compiled for a GPU that is not there.

An implementation writes a builder of its static arguments and calls the kernel with tensors; their device decides:

    @tile_kernel()
    def double(C, dtype):
        tokens = T.dynamic("tokens", "int64")

        @T.prim_func
        def double(x: T.Tensor((tokens, C), dtype), y: T.Tensor((tokens, C), dtype)):
            with T.Kernel(tokens, threads=128) as t:
                for c in T.Parallel(C):
                    y[t, c] = x[t, c] + x[t, c]

        return double

    double(C, "float32")(x, y)
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

#: Streaming multiprocessors of an H100 or H200: what a launch plans for where no GPU can be asked.
HOPPER_SMS = 132
#: The C target's vectors hold no fp16 conversions, and its kernels are for checking: scalar code is enough.
C_PASSES = {"tirx.disable_vectorize": True}
#: A vectorised access needs its tensor to start here; torch allocates at far coarser steps.
ALIGNMENT = 16

_for_c: ContextVar[bool] = ContextVar("_for_c", default=False)
_captured: ContextVar[dict[TileKernel, None] | None] = ContextVar("_captured", default=None)


class NotExpressible(RuntimeError):
    """The kernel is right, but TileLang's C target has no words for it: a skip with this reason, not a failure."""

    code = "not_expressible"


@dataclass(frozen=True)
class Argument:
    """What a kernel wants of one tensor; a size that is a name must be the same number wherever the name stands.

    A number, passed as such, has no sizes.
    """

    name: str
    dtype: str
    sizes: tuple[int | str, ...] | None


class TileKernel:
    """A builder with its static arguments; a call launches it, or is noted where launches are captured."""

    def __init__(self, build: Callable[..., Any], passes: dict[str, Any], static: tuple[Any, ...]) -> None:
        self.build, self.passes, self.static = build, passes, static

    def __call__(self, *tensors: Any) -> None:
        """Run on the tensors' device; outputs are among them, the first is no number.

        An empty tensor means an empty grid, so nothing is launched.

        Fails: ValueError for a tensor that is not what the kernel declares; NotExpressible on a CPU, where the C target
        lacks something; RuntimeError where autograd expects to see it.
        """
        if _wants_gradient(tensors):
            raise RuntimeError(
                "autograd does not see a kernel's launch: call it in a torch.autograd.Function or no_grad"
            )
        device = _check(self.arguments, tensors)
        launches = _captured.get()
        if launches is not None:
            launches[self] = None
        elif any(tensor.numel() == 0 for tensor in tensors if not isinstance(tensor, (int, float))):
            return
        elif device == "cuda":
            self._native(*tensors)
        elif device == "cpu":
            self._checked(*tensors)
        else:
            raise ValueError(f"TileLang kernels run on cuda or cpu tensors, not on {device}")

    def source(self, for_c: bool = False) -> Any:
        """The TileLang function, traced for CUDA or for the C target."""
        token = _for_c.set(for_c)
        try:
            return self.build(*self.static)
        finally:
            _for_c.reset(token)

    @functools.cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """What the kernel declares of each tensor, in order."""
        with quiet():
            func = self.source()
        found = []
        for param in func.params:
            buffer = func.buffer_map.get(param)
            shape = None if buffer is None else tuple(map(_size, buffer.shape))
            found.append(
                Argument(str(param.name if buffer is None else buffer.name), str((buffer or param).dtype), shape)
            )
        return tuple(found)

    @functools.cached_property
    def _native(self) -> Any:
        with quiet() as tilelang:
            return tilelang.compile(self.source(), target="cuda", pass_configs=self.passes)

    @functools.cached_property
    def _checked(self) -> Any:
        if any(argument.dtype == "bfloat16" for argument in self.arguments):
            raise NotExpressible("TileLang's C target has no bf16 type")
        with quiet() as tilelang:
            source = self.source(for_c=True)
            try:
                return tilelang.compile(source, target="c", pass_configs=C_PASSES)
            # TVM's errors are RuntimeErrors; a missing C++ compiler is asserted.
            except (RuntimeError, AssertionError) as error:
                self._lower_for_cuda()
                why = str(error).strip().splitlines()[0]
                raise NotExpressible(f"TileLang's C target cannot express {self.build.__name__}: {why}") from error

    def _lower_for_cuda(self) -> None:
        """See that the kernel itself is sound. Fails: with TileLang's own error where it is not."""
        from perflab.measure.compile_report import cuda_source

        cuda_source(self)


def tile_kernel(**passes: Any) -> Callable[[Callable[..., Any]], Callable[..., TileKernel]]:
    """Turn a builder of static arguments into kernels, one per set of arguments, each compiled once per target.

    `passes` are TileLang's CUDA pass options, `tl.` left out: `@tile_kernel(disable_warp_specialized=True)`.
    """

    def decorate(build: Callable[..., Any]) -> Callable[..., TileKernel]:
        @functools.cache
        def kernel(*static: Any) -> TileKernel:
            return TileKernel(build, {f"tl.{name}": value for name, value in passes.items()}, static)

        return functools.wraps(build)(kernel)

    return decorate


def for_c_target() -> bool:
    """Whether the kernel is being traced for the C target; for the few words that it lacks and a loop can spell out."""
    return _for_c.get()


def alloc_shared(shape: tuple[int, ...], dtype: str) -> Any:
    """Shared memory inside a kernel; on the C target, which knows one dynamic block only, static."""
    import tilelang.language as T

    return T.alloc_shared(shape, dtype, scope="shared" if _for_c.get() else "shared.dyn")


def row_split(width: int, dtype: str, max_threads: int = 256) -> tuple[int, int]:
    """Elements and threads of a block that takes a slice of a row: equal slices if any are, 16 bytes a thread.

    Threads need not fill their last warp: a slice that ends where the row ends needs no bounds checks.
    """
    vector = 4 if dtype == "float32" else 8
    lanes = math.ceil(width / vector)
    fewest = math.ceil(lanes / max_threads)
    blocks = next((count for count in range(fewest, 2 * fewest + 1) if lanes % count == 0), fewest)
    threads = max(32, math.ceil(lanes / blocks))
    return threads * vector, threads


def multiprocessors(tensor: Any) -> int:
    """Streaming multiprocessors to keep busy: the GPU's own, or Hopper's where there is no GPU."""
    if tensor.device.type != "cuda":
        return HOPPER_SMS
    import torch

    return int(torch.cuda.get_device_properties(tensor.device).multi_processor_count)


def sizes(tensor: Any, name: str, dims: str, **allowed: tuple[int, ...]) -> tuple[int, ...]:
    """The tensor's sizes under the names of `dims`, such as "T n C".

    Fails: ValueError for another number of dimensions, a size that `allowed` does not list under its name, or gaps in
    memory, which a view in another shape would have to copy.
    """
    names = dims.split()
    if tensor.dim() != len(names):
        raise ValueError(f"{name} must be [{', '.join(names)}], but has shape {list(tensor.shape)}")
    for dim, size in zip(names, tensor.shape, strict=True):
        if size not in allowed.get(dim, (size,)):
            raise ValueError(f"{dim} must be one of {', '.join(map(str, allowed[dim]))}, but {name} has {dim} = {size}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous")
    return tuple(tensor.shape)


def dtype_name(tensor: Any, name: str, allowed: tuple[str, ...] = ("bfloat16", "float16", "float32")) -> str:
    """The tensor's dtype as TileLang spells it. Fails: ValueError for one that is not allowed."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, but is {dtype}")
    return dtype


@contextlib.contextmanager
def capture() -> Iterator[dict[TileKernel, None]]:
    """Note launches instead of running them; the notes are an ordered set."""
    launches: dict[TileKernel, None] = {}
    token = _captured.set(launches)
    try:
        yield launches
    finally:
        _captured.reset(token)


@contextlib.contextmanager
def quiet() -> Iterator[Any]:
    """TileLang, imported late because that takes seconds, with its chatter kept off standard output."""
    os.environ.setdefault("TILELANG_PRINT_ON_COMPILATION", "0")
    with contextlib.redirect_stdout(sys.stderr):
        import tilelang

        yield tilelang


def _wants_gradient(tensors: tuple[Any, ...]) -> bool:
    """Whether a gradient through the launch is expected, which would silently be missing."""
    import torch

    return torch.is_grad_enabled() and any(getattr(tensor, "requires_grad", False) for tensor in tensors)


def _size(dim: Any) -> int | str:
    """A fixed size as a number, a symbolic one as its name."""
    if hasattr(dim, "value"):
        return int(dim.value)
    if str(dim.dtype) != "int64":
        # Index arithmetic takes the width of the symbolic sizes: 32 bits would wrap beyond 2^31 elements.
        raise TypeError(f'declare the size as T.dynamic("{dim.name}", "int64"): offsets need 64 bits')
    return str(dim.name)


def _check(arguments: tuple[Argument, ...], tensors: tuple[Any, ...]) -> str:
    """Compare tensors with the declaration; gives the device type they share."""
    if len(tensors) != len(arguments):
        raise ValueError(f"{len(arguments)} tensors are wanted, {len(tensors)} were given")
    known: dict[str, int] = {}
    for want, tensor in zip(arguments, tensors, strict=True):
        if want.sizes is None:
            continue
        for named, size in zip(want.sizes, tensor.shape, strict=False):
            known.setdefault(str(named), size)
        wanted = [known.get(size, size) if isinstance(size, str) else size for size in want.sizes]
        if list(tensor.shape) != wanted:
            raise ValueError(f"{want.name} must have shape {wanted}, but has {list(tensor.shape)}")
        if str(tensor.dtype) != f"torch.{want.dtype}":
            raise ValueError(f"{want.name} must be {want.dtype}, but is {str(tensor.dtype).removeprefix('torch.')}")
        if tensor.device != tensors[0].device:
            raise ValueError(f"{want.name} is on {tensor.device}, but {arguments[0].name} on {tensors[0].device}")
        if not tensor.is_contiguous():
            raise ValueError(f"{want.name} must be contiguous")
        if tensor.device.type == "cuda" and tensor.data_ptr() % ALIGNMENT:
            raise ValueError(f"{want.name} must start at a multiple of {ALIGNMENT} bytes; clone it first")
    return str(tensors[0].device.type)
