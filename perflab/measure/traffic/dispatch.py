"""Traffic of eager code: what every tensor operation reads and writes, seen by a `TorchDispatchMode`.

The operator's schema decides. Bytes are those of the distinct elements: an expanded tensor costs its storage, a slice
the slice, and tensors of one operation that overlap are read once.

- An output that shares storage with an input is a view and costs nothing; an operation that writes nothing reads
  nothing, unless it hands a number to the host (`item`, `equal`).
- A tensor that the schema mutates is read and written. `out=` arguments, `copy_`, `fill_`, `zero_` and random fills
  are only written; `resize_`, `set_` and in-place views cost nothing.
- `empty*` costs nothing; other factories write; `*_like` and `new_*` do not read the tensor they imitate.
- Gathers (`index`, `index_select`, `gather`, `take`, `embedding`) read as many source elements as they give, and at
  most the source: the values of an index never matter, so the count is the same on the meta device.
- Scatters in place write as many elements as the index picks, and read them when they accumulate. Out of place they
  read and write whole tensors, as eager PyTorch copies first. A boolean mask is counted by its true entries, on the
  meta device by all of them.
- A composite operation is counted by its parts where PyTorch decomposes it, else by its interface: scratch memory
  inside one operation is not seen. Neither is a kernel that is launched without the dispatcher, such as Triton's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from perflab.measure import operators
from perflab.measure.traffic.footprint import Footprint, strided, union_bytes
from perflab.record import Traffic

_OVERWRITES = {"copy_", "fill_", "zero_"}
_GATHERS = {"index", "_unsafe_index", "index_select", "gather", "take", "embedding"}
#: In-place scatters whose index names single elements, and those whose index names whole rows.
_ELEMENT_SCATTERS = {"scatter_", "scatter_add_", "scatter_reduce_"}
_ROW_SCATTERS = {"index_add_", "index_copy_", "index_fill_", "index_reduce_"}
_INDEX_PUTS = {"index_put_", "_index_put_impl_"}
_SCATTERS = _ELEMENT_SCATTERS | _ROW_SCATTERS | _INDEX_PUTS
_ACCUMULATES = {"scatter_add_", "scatter_reduce_", "index_add_", "index_reduce_"}


def count(call: Callable[[], object]) -> Traffic:
    """Run `call` once and count the tensor operations it makes, backward passes included.

    Works on any device, meta included. `launches` is the number of operations that moved bytes, and `detail` maps
    each operation to its count, read_bytes and write_bytes. A function that torch.compile wrapped cannot be counted
    here (see `inductor`). Fails: NotImplementedError for sparse tensors.
    """
    with DispatchCounter() as counter:
        call()
    return Traffic(
        source="dispatch",
        read_bytes=counter.read_bytes,
        write_bytes=counter.write_bytes,
        launches=counter.launches,
        collector=f"torch {torch.__version__} TorchDispatchMode",
        detail=dict(sorted(counter.table.items())),
    )


class DispatchCounter(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Counts while it is entered; `paused` lets operations through uncounted."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = False
        self.table: dict[str, dict[str, int]] = {}

    @property
    def read_bytes(self) -> int:
        """Bytes read so far."""
        return sum(row["read_bytes"] for row in self.table.values())

    @property
    def write_bytes(self) -> int:
        """Bytes written so far."""
        return sum(row["write_bytes"] for row in self.table.values())

    @property
    def launches(self) -> int:
        """Operations so far that moved bytes."""
        return sum(row["count"] for row in self.table.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused or func.namespace == "prim":
            return func(*args, **kwargs)
        if inside := operators.body(func):
            # What counts is what the operator does inside; its kernels are counted by another source.
            with self:
                return inside(*args, **kwargs)
        # Composite operations arrive whole under inference mode, and split into their parts elsewhere: count the parts.
        with self:
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        operation = _Operation(func, args, kwargs)
        result = func(*args, **kwargs)
        self._add(str(func), *operation.moved(result))
        return result

    def _add(self, name: str, read_bytes: int, write_bytes: int) -> None:
        if read_bytes or write_bytes:
            row = self.table.setdefault(name, {"count": 0, "read_bytes": 0, "write_bytes": 0})
            row["count"] += 1
            row["read_bytes"] += read_bytes
            row["write_bytes"] += write_bytes


class _Regions:
    """Footprints by storage, so that tensors which overlap are counted once."""

    def __init__(self) -> None:
        self.parts: dict[int, list[Footprint]] = {}
        self.limited = 0

    def add(self, tensor: torch.Tensor, at_most: int | None = None) -> None:
        """Add a tensor, or no more than `at_most` of its bytes, which are then not checked for overlap."""
        footprint = strided(tensor.size(), tensor.stride(), tensor.storage_offset(), tensor.element_size())
        if at_most is None:
            self.parts.setdefault(_storage(tensor), []).append(footprint)
        else:
            self.limited += min(at_most, union_bytes([footprint]))

    @property
    def nbytes(self) -> int:
        return self.limited + sum(union_bytes(parts) for parts in self.parts.values())


class _Operation:
    """One operation before it runs: its arguments by name, as the schema declares them."""

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.func = func
        self.name: str = func._schema.name.split("::")[-1]
        self.values: dict[str, Any] = {}
        self.overwritten: list[torch.Tensor] = []
        self.mutated: list[torch.Tensor] = []
        self.used: list[torch.Tensor] = []
        for position, argument in enumerate(func._schema.arguments):
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            self.values[argument.name] = value
            mutates = argument.alias_info is not None and argument.alias_info.is_write
            kind = self.used if not mutates else self.overwritten if self._overwrites(argument) else self.mutated
            kind.extend(_tensors(value))
        # `resize_` and in-place views change a tensor's metadata while the operation runs.
        self.storages = {_storage(t) for t in (*self.used, *self.mutated, *self.overwritten)}
        self.picked = self._picked_elements() if self.name in _SCATTERS else None

    def moved(self, result: Any) -> tuple[int, int]:
        """Bytes read and bytes written, once the operation has given `result`."""
        new = [t for t in _tensors(result) if _storage(t) not in self.storages]
        tags = self.func.tags
        makes_nothing = self.name.startswith(("empty", "new_empty")) or torch.Tag.inplace_view in tags
        writes_something = new or self.mutated or self.overwritten
        if makes_nothing or not (writes_something or torch.Tag.data_dependent_output in tags):
            return 0, 0
        if self.picked is not None:
            return self._scattered(self.picked)
        reads, writes = _Regions(), _Regions()
        for tensor in (*new, *self.mutated, *self.overwritten):
            writes.add(tensor)
        if not self.name.endswith("_like") and not self.name.startswith("new_"):
            given = sum(t.numel() for t in _tensors(result))
            for position, tensor in enumerate((*self.used, *self.mutated)):
                gathered = self.name in _GATHERS and position == 0
                reads.add(tensor, given * tensor.element_size() if gathered else None)
        return reads.nbytes, writes.nbytes

    def _overwrites(self, argument: Any) -> bool:
        """Whether a mutated argument's old values are never read."""
        # Random fills carry this tag; rrelu_ carries it too, but reads the tensor that it changes.
        fills_at_random = torch.Tag.nondeterministic_seeded in self.func.tags and self.name != "rrelu_"
        overwrites = self.name.removeprefix("_foreach_") in _OVERWRITES
        return bool(argument.is_out) or overwrites or (fills_at_random and argument.name == "self")

    def _scattered(self, picked: int) -> tuple[int, int]:
        target = self.mutated[0]
        item = target.element_size()
        touched = _Regions()
        touched.add(target, picked * item)
        reads = _Regions()
        for tensor in self.used:
            # The source of an element scatter may be larger than the index, and is then read in part.
            whole = self.name not in _ELEMENT_SCATTERS or tensor is self.values["index"]
            reads.add(tensor, None if whole else picked * tensor.element_size())
        accumulates = self.name in _ACCUMULATES or self.values.get("accumulate") or self.values.get("reduce")
        return reads.nbytes + (touched.nbytes if accumulates else 0), touched.nbytes

    def _picked_elements(self) -> int:
        target: torch.Tensor = self.values["self"]
        if self.name in _INDEX_PUTS:
            return _picked_by_indices(target, self.values["indices"])
        index: torch.Tensor = self.values["index"]
        if self.name in _ELEMENT_SCATTERS or target.dim() == 0:
            return int(index.numel())
        return int(index.numel() * target.numel() // max(1, target.size(self.values["dim"])))


def _picked_by_indices(target: torch.Tensor, indices: list[torch.Tensor | None]) -> int:
    """Elements that `target[indices]` names, repeats included."""
    shapes: list[tuple[int, ...]] = []
    rest = list(target.shape)
    dim = 0
    for index in indices:
        mask = index is not None and index.dtype in (torch.bool, torch.uint8)
        width = max(1, index.dim()) if mask and index is not None else 1
        if index is not None:
            rest[dim : dim + width] = [1] * width
            shapes.append((_true_entries(index),) if mask else tuple(index.shape))
        dim += width
    return math.prod((*torch.broadcast_shapes(*shapes), *rest))


def _true_entries(mask: torch.Tensor) -> int:
    return mask.numel() if mask.is_meta else int(torch.count_nonzero(mask))


def _storage(tensor: torch.Tensor) -> int:
    """Identity of the storage, which a meta tensor has too."""
    return int(tensor.untyped_storage()._cdata)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _tensors(entry)
