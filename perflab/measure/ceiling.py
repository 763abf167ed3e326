"""The memory ceiling: how fast this machine copies and adds large arrays, with the threads that cases use."""

from __future__ import annotations

import statistics
from typing import Any

import torch

from perflab.measure.timing import timer

SAMPLES = 7
#: Working sets as multiples of the last-level cache: inside it, around it, well outside it.
CACHE_MULTIPLES = (0.25, 1, 4)
DEFAULT_CACHE_BYTES = 32 * 2**20
#: Most memory that one measurement may take.
MAX_BYTES = 5 * 2**28


def measure(device: str, cache_bytes: int | None) -> list[dict[str, Any]]:
    """Copy (one read, one write) and triad (two reads, one write) on several working sets.

    gives  a list of {kernel, working_set_bytes, outside_cache, bandwidth}, bandwidth in B/s, the median of SAMPLES
    """
    if device == "cuda":
        cache_bytes = torch.cuda.get_device_properties().L2_cache_size
    cache = cache_bytes or DEFAULT_CACHE_BYTES
    results = []
    for working_set in sorted({min(int(cache * multiple), MAX_BYTES) for multiple in CACHE_MULTIPLES}):
        for kernel, arrays in (("copy", 2), ("triad", 3)):
            results.append(
                {
                    "kernel": kernel,
                    "working_set_bytes": working_set,
                    "outside_cache": working_set >= CACHE_MULTIPLES[-1] * cache,
                    "bandwidth": _bandwidth(kernel, arrays, working_set, device),
                }
            )
    return results


def _bandwidth(kernel: str, arrays: int, working_set: int, device: str) -> float:
    elements = working_set // arrays // 4
    a, b, *rest = (torch.ones(elements, device=device) for _ in range(arrays))
    if kernel == "copy":
        clock = timer(lambda: a.copy_(b), device)
    else:
        clock = timer(lambda: torch.add(b, rest[0], alpha=3.0, out=a), device)
    clock.calibrate(0.005)
    return elements * 4 * arrays / statistics.median(clock.sample(SAMPLES))
