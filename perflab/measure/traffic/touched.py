"""Which tensor of a launch an address belongs to, and how many bytes were asked of it.

Distinct bytes are marked in one byte array per tensor and direction, as large as the tensor; only the pages that are
marked take memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from perflab.measure.traffic.footprint import strided

Direction = Literal["read", "write"]
Addresses = npt.NDArray[np.int64]

#: Name of everything outside the tensor arguments: pointers that a kernel loads or makes.
OUTSIDE = "(outside every argument)"
SECTOR_BYTES = 32


class Regions:
    """Disjoint address ranges with names.

    Each tensor owns the addresses between its first and its last element, and the rest of its storage. Ranges that
    overlap (one buffer given twice, interleaved slices) cannot be told apart and share one name, "a+b".
    """

    def __init__(self, tensors: Iterable[tuple[str, Any]]) -> None:
        spans: list[tuple[int, int, str]] = []
        storages: dict[tuple[int, int], list[str]] = {}
        for name, tensor in tensors:
            if tensor.numel():
                place = strided(tensor.size(), tensor.stride(), 0, tensor.element_size())
                spans.append((tensor.data_ptr(), tensor.data_ptr() + place.stop, name))
                storage = tensor.untyped_storage()
                storages.setdefault((storage.data_ptr(), storage.data_ptr() + storage.nbytes()), []).append(name)
        merged = _merged(spans)
        for (low, high), names in storages.items():
            # What lies between the spans of a storage, e.g. the rest of a tensor of which a column was passed.
            edges = [low, *(edge for lo, hi, _ in merged if low <= lo < high for edge in (lo, hi)), high]
            gaps = [(lo, hi, _joined(names)) for lo, hi in zip(edges[::2], edges[1::2], strict=True) if lo < hi]
            merged = sorted([*merged, *gaps])
        self.starts = np.array([lo for lo, _, _ in merged], dtype=np.int64)
        self.ends = np.array([hi for _, hi, _ in merged], dtype=np.int64)
        self.names = [name for _, _, name in merged]

    def find(self, addresses: Addresses) -> Addresses:
        """Index of the range of each address, -1 outside all."""
        found = np.searchsorted(self.starts, addresses, side="right") - 1
        return np.where((found >= 0) & (addresses < np.append(self.ends, 0)[found]), found, -1)


def _joined(names: Iterable[str]) -> str:
    return "+".join(dict.fromkeys(part for name in names for part in name.split("+")))


def _merged(spans: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    merged: list[tuple[int, int, str]] = []
    for low, high, name in sorted(spans):
        if merged and low < merged[-1][1]:
            last = merged.pop()
            merged.append((last[0], max(high, last[1]), _joined((last[2], name))))
        else:
            merged.append((low, high, name))
    return merged


class Touched:
    """Bytes one program, or several, asked of each tensor; with `distinct`, also which bytes those were."""

    def __init__(self, regions: Regions, distinct: bool) -> None:
        self.regions = regions
        self.requested: Counter[tuple[str, Direction]] = Counter()
        self.sectors: Counter[Direction] = Counter()
        self._marks: dict[tuple[int, Direction], npt.NDArray[np.uint8]] | None = {} if distinct else None

    def begin(self) -> None:
        """Forget the requests, not the distinct bytes, before the next program."""
        self.requested, self.sectors = Counter(), Counter()

    def add(self, direction: Direction, pointers: Any, mask: Any, item_bytes: int) -> None:
        """Add one memory instruction: the elements of `item_bytes` at `pointers` where `mask` is set."""
        addresses = np.asarray(pointers).astype(np.int64)
        active = addresses[np.broadcast_to(np.asarray(mask, dtype=bool), addresses.shape)]
        if not active.size:
            return
        self.sectors[direction] += SECTOR_BYTES * _sectors(active)
        first, last = self.regions.find(np.array([active.min(), active.max()])).tolist()
        if first == last >= 0:
            self._add_to(first, direction, active, item_bytes)
            return
        owners = self.regions.find(active)
        for owner in np.unique(owners).tolist():
            self._add_to(owner, direction, active[owners == owner], item_bytes)

    def _add_to(self, owner: int, direction: Direction, active: Addresses, item_bytes: int) -> None:
        name = self.regions.names[owner] if owner >= 0 else OUTSIDE
        self.requested[name, direction] += active.size * item_bytes
        if owner < 0 or self._marks is None:
            return
        start, end = int(self.regions.starts[owner]), int(self.regions.ends[owner])
        if (owner, direction) not in self._marks:
            # Room for a whole element at the end, so that the array can be viewed at any element width.
            self._marks[owner, direction] = np.zeros((end - start + 15) // 8 * 8, dtype=np.uint8)
        marks = self._marks[owner, direction]
        offsets = active - start
        if item_bytes in (1, 2, 4, 8) and not (offsets % item_bytes).any():
            wide = marks.view(f"u{item_bytes}")
            wide[offsets // item_bytes] = np.iinfo(wide.dtype).max
        else:
            for byte in range(item_bytes):
                marks[offsets + byte] = 1

    def distinct(self) -> Counter[tuple[str, Direction]]:
        """Bytes touched at least once, per tensor and direction; nothing is known of bytes outside every argument."""
        counts: Counter[tuple[str, Direction]] = Counter()
        for (owner, direction), marks in (self._marks or {}).items():
            counts[self.regions.names[owner], direction] += int(np.count_nonzero(marks))
        return counts


def _sectors(addresses: Addresses) -> int:
    """Distinct 32-byte sectors that naturally aligned elements at `addresses` lie in."""
    sectors = addresses // SECTOR_BYTES
    steps = np.diff(sectors)
    if (steps >= 0).all():
        return int(np.count_nonzero(steps)) + 1
    return int(np.unique(sectors).size)
