"""Bytes of one Inductor graph, from its schedule after code generation.

A kernel's cost is the set of bytes it touches: each element once, however many loops of the kernel visit it.

- Indices are evaluated, so a slice costs the slice, an expanded input its storage, and padding nothing.
- A value that a kernel makes and uses itself stays in registers; its buffer is written when something later needs it.
  A buffer that code generation removed costs nothing.
- In-place: what is read before it is overwritten is read, what is overwritten is written. Atomic adds do both.
- An index that depends on data (gather, scatter) touches at most one element per iteration, and at most the buffer.
- External kernels (mm, convolution, fallbacks) read each input and write each output; one that mutates an input does
  both, and their scratch memory is not seen. Concatenation in place, views and tuple access cost nothing themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sympy  # type: ignore[import-untyped]  # comes with torch
from torch._inductor import ir
from torch._inductor.dependencies import MemoryDep, StarDep
from torch._inductor.scheduler import ExternKernelSchedulerNode, NopKernelSchedulerNode

from perflab.measure.traffic.footprint import Footprint, strided, union_bytes

#: Iterations over which an index that is no sum of strides is evaluated; beyond it, an upper bound is given.
MAX_EVALUATED = 1 << 24

_NUMPY = {
    "FloorDiv": np.floor_divide,
    "CleanDiv": np.floor_divide,
    "ModularIndexing": lambda value, divisor, modulus: value // divisor % modulus,
    "Mod": np.mod,
    "PythonMod": np.mod,
    "Identity": lambda value: value,
}


@dataclass(frozen=True)
class KernelTraffic:
    """One scheduled kernel: where it comes from in the graph, its scheduler nodes, its bytes."""

    name: str
    nodes: str
    read_bytes: int
    write_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """As it is recorded."""
        return dict(vars(self))


def kernels_of(graph: Any) -> list[KernelTraffic]:
    """Kernels that move bytes, in order, of a `GraphLowering` which has generated its code.

    To be called while it is Inductor's current graph (`V.graph`).
    """
    kernels: dict[str, _Kernel] = {}
    for node in graph.scheduler.nodes:
        leaves = [leaf for leaf in node.get_nodes() if not isinstance(leaf, NopKernelSchedulerNode)]
        kernel = kernels.setdefault(node.get_name(), _Kernel(graph, leaves))
        for leaf in leaves:
            if not isinstance(leaf, ExternKernelSchedulerNode):
                kernel.add_loops(leaf)
            elif isinstance(leaf.node, ir.MultiOutput):
                # One entry of the tuple that an external kernel gives: that kernel wrote it.
                maker = graph.scheduler.name_to_buf[_tuple_of(leaf.node).get_name()].defining_op_name()
                kernels.get(maker, kernel).writes.add(leaf.node)
            else:
                kernel.add_external(leaf)
    counted = (kernel.traffic(nodes) for nodes, kernel in kernels.items())
    return [kernel for kernel in counted if kernel.read_bytes or kernel.write_bytes]


def _tuple_of(node: Any) -> Any:
    while isinstance(node, ir.MultiOutput):
        node = node.inputs[0]
    return node


class _Kernel:
    """A kernel while its accesses are collected."""

    def __init__(self, graph: Any, leaves: list[Any]) -> None:
        self.graph = graph
        self.reads, self.writes = _Accesses(graph), _Accesses(graph)
        self.origins = [origin.name for leaf in leaves for origin in leaf.node.origins]
        self.made = {buffer.get_name() for leaf in leaves for buffer in leaf.get_outputs()}
        self.removed = graph.removed_buffers | graph.inplaced_to_remove

    def traffic(self, nodes: str) -> KernelTraffic:
        name = "+".join(dict.fromkeys(self.origins)) or nodes
        return KernelTraffic(name, nodes, self.reads.nbytes, self.writes.nbytes)

    def add_loops(self, leaf: Any) -> None:
        """Add a loop nest that Inductor generates."""
        iterations = math.prod(_hint(self.graph, size) for sizes in leaf.get_ranges() for size in sizes)
        mutates = any(buffer.get_mutations() for buffer in leaf.get_outputs())
        for dep in leaf.read_writes.reads:
            # The mutated buffer appears as a whole among the reads, only to keep mutations in order.
            ordering = isinstance(dep, StarDep) and mutates
            if dep.name not in self.made and not ordering and isinstance(dep, (MemoryDep, StarDep)):
                self.reads.add_dep(dep, iterations)
        for dep in leaf.read_writes.writes:
            if dep.name not in self.removed and isinstance(dep, (MemoryDep, StarDep)):
                self.writes.add_dep(dep, iterations)
                if "atomic" in (dep.mode or ""):
                    self.reads.add_dep(dep, iterations)

    def add_external(self, leaf: Any) -> None:
        """Add a kernel that Inductor only calls."""
        mutated = {name for buffer in leaf.get_outputs() for name in buffer.get_mutations()}
        for value in leaf.node.inputs:
            self.reads.add(value)
            if mutated and value.get_name() in mutated:
                self.writes.add(value)
        self.writes.add(leaf.node)


@dataclass
class _Accesses:
    """Footprints in bytes by buffer, and bytes of which only the number is known."""

    graph: Any
    parts: dict[str, list[Footprint]] = field(default_factory=dict)
    loose: dict[str, int] = field(default_factory=dict)

    def add(self, value: Any) -> None:
        """Add a whole tensor or view; what holds no bytes itself (a tuple, a mutation) adds nothing."""
        layout = value.maybe_get_output_spec()
        if isinstance(layout, ir.Layout) and not isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
            sizes, strides = self._hints(layout.size), self._hints(layout.stride)
            place = strided(sizes, strides, _hint(self.graph, layout.offset), layout.dtype.itemsize)
            self.parts.setdefault(value.get_name(), []).append(place)

    def add_dep(self, dep: Any, iterations: int) -> None:
        """Add what a loop nest touches of a buffer."""
        name = self.graph.scheduler.mutation_real_name.get(dep.name, dep.name)
        item = self.graph.get_dtype(name).itemsize
        touched = None if isinstance(dep, StarDep) or dep.is_indirect() else self._walk(dep, item)
        if touched is None:
            numel = _hint(self.graph, self.graph.get_numel(name))
            elements = numel if isinstance(dep, StarDep) else min(iterations, numel)
            self.loose[name] = max(self.loose.get(name, 0), elements * item)
        else:
            self.parts.setdefault(name, []).extend(touched)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers; where a buffer is touched both at known and at unknown places, those of the larger."""
        return sum(
            max(union_bytes(self.parts.get(name, []), self._limit(name)), self.loose.get(name, 0))
            for name in self.parts.keys() | self.loose.keys()
        )

    def _walk(self, dep: Any, item: int) -> list[Footprint] | None:
        """The places a loop nest touches, if they can be told."""
        sizes = dict(zip(dep.var_names, self._hints(dep.size), strict=True))
        others = {s: _hint(self.graph, s) for s in dep.index.free_symbols if s not in sizes}
        index = sympy.expand(dep.index.subs(others))
        strides = {var: index.coeff(var) for var in sizes}
        offset = index.subs(dict.fromkeys(sizes, 0))
        affine = sympy.expand(index - offset - sum(var * stride for var, stride in strides.items())) == 0
        if affine and all(value.is_Integer for value in (offset, *strides.values())):
            return [strided(list(sizes.values()), [int(s) for s in strides.values()], int(offset), item)]
        used = [var for var in sizes if var in index.free_symbols]
        if math.prod(sizes[var] for var in used) > MAX_EVALUATED:
            return None
        axes = np.meshgrid(*(np.arange(sizes[var]) for var in used), indexing="ij", sparse=True)
        values = np.unique(sympy.lambdify(used, index, modules=[_NUMPY, "numpy"])(*axes))
        return list(_runs_of(values.astype(np.int64), item))

    def _limit(self, name: str) -> int:
        """Bytes from the start of a buffer to its end: what a masked load asks for beyond it is never loaded."""
        layout = self.graph.get_buffer(name).get_layout()
        place = strided(self._hints(layout.size), self._hints(layout.stride), _hint(self.graph, layout.offset))
        return place.stop * int(layout.dtype.itemsize)

    def _hints(self, sizes: Iterable[Any]) -> list[int]:
        return [_hint(self.graph, size) for size in sizes]


def _runs_of(values: Any, item: int) -> Iterable[Footprint]:
    """Footprints of sorted distinct element numbers."""
    breaks = np.flatnonzero(np.diff(values) != 1) + 1
    for run in np.split(values, breaks):
        yield Footprint(int(run[0]) * item, len(run) * item)


def _hint(graph: Any, size: Any) -> int:
    """A size as a number; a dynamic one as Inductor saw it when it compiled."""
    if isinstance(size, (int, sympy.Integer)):
        return int(size)
    return int(graph.sizevars.optimization_hint(size, fallback=0))
