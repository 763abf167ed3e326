"""What a metric may look at besides its own record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perflab.analyse.overhead import Overhead, overhead
from perflab.record import Record

#: A working set below this multiple of the last-level cache may stay in it.
CACHE_MULTIPLE = 4


@dataclass(frozen=True)
class Context:
    """The run a record belongs to.

    about  the run's run.json
    group  all records with the record's stage, shape, dtype, pass and device
    """

    about: Mapping[str, Any]
    group: Sequence[Record] = field(default_factory=tuple)

    def baseline(self) -> Record | None:
        """The group's record that speed-ups and overheads refer to."""
        return next((r for r in self.group if r.implementation == f"{r.stage}/{r.baseline}"), None)

    def overhead(self, record: Record) -> Overhead | None:
        """The record's overhead over the group's baseline, of steps sampled in rounds."""
        baseline = self.baseline()
        if baseline is None or baseline is record or record.step is None:
            return None
        return overhead(record.latency, baseline.latency) if record.latency and baseline.latency else None

    def cache_bytes(self, device: str) -> int | None:
        """The last-level cache of `device`, in bytes."""
        if device == "cuda":
            return (self.about.get("torch") or {}).get("l2_bytes")
        return (self.about.get("machine") or {}).get("last_level_cache_bytes")

    def in_cache(self, record: Record) -> bool | None:
        """Whether the case's compulsory bytes may stay in the last-level cache; None if that is not known.

        A case that starts from flushed caches reads memory whatever its size.
        """
        cache = self.cache_bytes(record.device)
        if record.latency is not None and record.latency.cold:
            return False
        if cache is None or record.compulsory is None:
            return None
        return record.compulsory.read_bytes + record.compulsory.write_bytes < CACHE_MULTIPLE * cache

    def ceiling(self) -> float | None:
        """The best memory bandwidth that the run measured outside the cache, in B/s."""
        outside = [entry["bandwidth"] for entry in self.about.get("ceiling") or [] if entry["outside_cache"]]
        return max(outside, default=None)

    def matmul_rate(self, dtype: str) -> float | None:
        """The rate of large matrix products that the run measured, in FLOP/s."""
        return ((self.about.get("compute") or {}).get("matmul") or {}).get(dtype)
