"""How much of the processors others used while something was sampled: their load is not in any sample's spread."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil

#: Fields of psutil.cpu_times in which a processor does something for somebody, or is taken away by the host.
BUSY = ("user", "nice", "system", "irq", "softirq", "steal")


class Bystanders:
    """Looks at the processors from its making on; `own` are the processes whose work is not others'."""

    def __init__(self, own: Sequence[int]) -> None:
        self._own = [psutil.Process(pid) for pid in own]
        self._start = self._now()

    def share(self) -> float:
        """The others' share of all processors' time so far, from 0 to 1."""
        wall, busy, own = (now - then for now, then in zip(self._now(), self._start, strict=True))
        return min(1.0, max(0.0, (busy - own) / (wall * (psutil.cpu_count() or 1))))

    def _now(self) -> tuple[float, float, float]:
        times = psutil.cpu_times()
        busy = sum(getattr(times, name, 0.0) for name in BUSY)
        return time.monotonic(), busy, sum(_seconds(process) for process in self._own)


def _seconds(process: psutil.Process) -> float:
    """Processor time of a process and of its children that have ended; nothing once it is gone."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system + times.children_user + times.children_system
