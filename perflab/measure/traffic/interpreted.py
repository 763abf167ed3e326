"""Traffic of Triton kernels, run by Triton's interpreter with its memory accesses counted.

Every access of the interpreter, be it a load, a store, a tensor descriptor or an atomic, ends in one of four functions
of its C++ extension. Those are wrapped, so nothing depends on how the layers above are called in a version of Triton.

A launch with more programs than the budget runs only some of them, at the true launch shape (see `grid`): each class
of programs must ask for equal bytes of every tensor, and is scaled by its size.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import triton

from perflab.measure.traffic.dispatch import DispatchCounter
from perflab.measure.traffic.launch import Launch, NotUniform, total
from perflab.record import Traffic

__all__ = ["NotUniform", "count"]

_one_at_a_time = threading.Lock()


def count(
    call: Callable[[], object], names: Mapping[str, torch.Tensor] | None = None, budget: int = 64, seed: int = 0
) -> Traffic:
    """Run `call` once and count what its Triton kernels load and store, in a process with TRITON_INTERPRET=1.

    names    tensors to call by name; other tensor arguments have the name the kernel gives them
    budget   programs of one launch to run; a launch with more is sampled, and then its outputs are incomplete, so
             nothing that `call` returns may be used, and a kernel that follows data must not follow those outputs
    seed     of the choice of programs

    read_bytes and write_bytes are the bytes under the masks, plus those of the tensor operations that `call` makes
    between its launches (detail.tensor_ops, counted as in `dispatch`); launches counts both. Atomics read and write.
    `detail` also has: tensors (bytes and distinct bytes by tensor), kernels, programs, programs_run, sampled, and
    sector_read_bytes and sector_write_bytes: 32-byte sectors that the instructions of a program touch, one by one.
    Distinct bytes are per launch, and missing when a launch was sampled; sectors are missing when they differ within
    a class. Fails: NotUniform if programs of a class differ; RuntimeError inside another count.
    """
    if not _one_at_a_time.acquire(blocking=False):
        raise RuntimeError("another count of interpreted kernels is under way in this process")
    try:
        launches: list[Launch] = []
        with DispatchCounter() as operations, _counted(launches, operations, names or {}, (budget, seed)):
            call()
    finally:
        _one_at_a_time.release()
    detail = total(launches)
    kernels = detail["kernels"].values()
    return Traffic(
        source="interpreted",
        read_bytes=sum(k["read_bytes"] for k in kernels) + operations.read_bytes,
        write_bytes=sum(k["write_bytes"] for k in kernels) + operations.write_bytes,
        # Triton launches nothing for an empty grid.
        launches=sum(bool(launch.programs) for launch in launches) + operations.launches,
        collector=f"triton {triton.__version__} interpreter",
        detail=detail | {"tensor_ops": dict(sorted(operations.table.items()))},
    )


@contextmanager
def _counted(
    launches: list[Launch], operations: DispatchCounter, names: Mapping[str, torch.Tensor], choice: tuple[int, int]
) -> Iterator[None]:
    """While entered, every launch is appended to `launches`, and runs only the programs it needs."""
    from triton.runtime import interpreter

    run = interpreter.GridExecutor.__call__

    def counted_run(self: Any, *args: Any, **kwargs: Any) -> Any:
        launch = Launch(self.fn.__name__, self.arg_names, names, choice)
        grid = self.grid

        def planned(arguments: Any) -> tuple[int, int, int]:
            sizes = grid(arguments) if callable(grid) else grid
            return launch.plan([operator.index(size) for size in sizes])

        self.grid, operations.paused = planned, True
        launches.append(launch)
        try:
            result = run(self, *args, **kwargs)
        finally:
            self.grid, operations.paused = grid, False
        launch.finish()
        return result

    memory = interpreter._interpreter
    patches = [
        (interpreter.GridExecutor, {"__call__": counted_run} | _argument_wrapper(interpreter.GridExecutor, launches)),
        (interpreter.InterpreterBuilder, _grid_wrappers(interpreter.InterpreterBuilder, launches)),
        (memory, _memory_wrappers(memory, launches)),
    ]
    originals = [(owner, name, getattr(owner, name)) for owner, wrappers in patches for name in wrappers]
    try:
        for owner, wrappers in patches:
            for name, wrapper in wrappers.items():
                setattr(owner, name, wrapper)
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def _argument_wrapper(executor: Any, launches: list[Launch]) -> dict[str, Callable[..., Any]]:
    """Shows the launch where the interpreter keeps its arguments: copies, if they live on another device."""
    to_host = executor._init_args_hst

    def located(self: Any, args: Any, kwargs: Any) -> Any:
        on_host = to_host(self, args, kwargs)
        launches[-1].locate((args, kwargs), on_host)
        return on_host

    return {"_init_args_hst": located}


def _grid_wrappers(builder: Any, launches: list[Launch]) -> dict[str, Callable[..., Any]]:
    """Turn the loop over the chosen programs into the places they have in the true grid."""
    set_dim, set_index = builder.set_grid_dim, builder.set_grid_idx

    def dim_of_launch(self: Any, *_chosen: int) -> None:
        set_dim(self, *launches[-1].grid)

    def index_of_program(self: Any, position: int, *_zeros: int) -> None:
        set_index(self, *launches[-1].begin(position))

    return {"set_grid_dim": dim_of_launch, "set_grid_idx": index_of_program}


def _memory_wrappers(memory: Any, launches: list[Launch]) -> dict[str, Callable[..., Any]]:
    """The four functions through which the interpreter touches memory, each counting before it acts."""
    load, store, rmw, cas = memory.load, memory.store, memory.atomic_rmw, memory.atomic_cas

    @functools.wraps(load)
    def counted_load(pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        launches[-1].touch(("read",), pointers, mask, dtype.itemsize)
        return load(pointers, mask, other, dtype)

    @functools.wraps(store)
    def counted_store(pointers: Any, values: Any, mask: Any) -> Any:
        launches[-1].touch(("write",), pointers, mask, values.itemsize)
        return store(pointers, values, mask)

    @functools.wraps(rmw)
    def counted_rmw(op: Any, pointers: Any, values: Any, mask: Any, order: Any) -> Any:
        launches[-1].touch(("read", "write"), pointers, mask, values.itemsize)
        return rmw(op, pointers, values, mask, order)

    @functools.wraps(cas)
    def counted_cas(pointers: Any, compare: Any, values: Any, order: Any) -> Any:
        launches[-1].touch(("read", "write"), pointers, True, values.itemsize)
        return cas(pointers, compare, values, order)

    return {"load": counted_load, "store": counted_store, "atomic_rmw": counted_rmw, "atomic_cas": counted_cas}
