"""What bounds every case here: how fast this machine copies, adds and multiplies large arrays, and starts work."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

import torch

from perflab.measure.timing import step_threads, timer

SAMPLES = 7
#: Working sets as multiples of the last-level cache: inside it, around it, well outside it.
CACHE_MULTIPLES = (0.25, 1, 4)
DEFAULT_CACHE_BYTES = 32 * 2**20
#: Most memory that one measurement may take.
MAX_BYTES = 5 * 2**28
#: Rows and columns of the matrices that tell the product rate.
MATMUL_SIZE = {"cpu": 1024, "cuda": 8192}
#: A GPU needs more than its cache's multiples to show its memory: starting and ending weigh less in gigabytes.
CUDA_WORKING_SETS = (2**30, 4 * 2**30)


def measure(device: str, cache_bytes: int | None) -> list[dict[str, Any]]:
    """Copy (one read, one write) and triad (two reads, one write) on several working sets.

    gives  a list of {kernel, working_set_bytes, outside_cache, bandwidth}, bandwidth in B/s, the median of SAMPLES
    """
    if device == "cuda":
        cache_bytes = torch.cuda.get_device_properties().L2_cache_size
    cache = cache_bytes or DEFAULT_CACHE_BYTES
    results = []
    sets = {min(int(cache * multiple), MAX_BYTES) for multiple in CACHE_MULTIPLES}
    # On a GPU every sample starts from a cold cache, so sets that would fit it say nothing.
    for working_set in CUDA_WORKING_SETS if device == "cuda" else sorted(sets):
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


def compute(device: str, cache_bytes: int | None) -> dict[str, Any]:
    """What bounds a training step, with as many threads as it has: `threads`, None on a GPU.

    gives  matmul: FLOP/s by dtype, of square matrices of MATMUL_SIZE; launch_s: seconds of an operation on one element;
           bandwidth: B/s, the larger of copy and triad outside the cache; None where the cache is too large for that
    """
    threads = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(step_threads())
    try:
        moved = [one["bandwidth"] for one in measure(device, cache_bytes) if one["outside_cache"]]
        told = {"threads": torch.get_num_threads() if device == "cpu" else None, "bandwidth": max(moved, default=None)}
        return told | _products(device)
    finally:
        torch.set_num_threads(threads)


def _products(device: str) -> dict[str, Any]:
    rates = {}
    for dtype in ("fp32", "bf16") if device == "cuda" else ("fp32",):
        torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
        # Random: constant numbers switch few bits, and a GPU that its power limits would run faster on them.
        size = MATMUL_SIZE[device]
        a, b, c = (torch.randn(size, size, dtype=torch_dtype, device=device) for _ in "abc")
        rates[dtype] = 2 * size**3 / _seconds(functools.partial(torch.matmul, a, b, out=c), device)
    one = torch.ones(1, device=device)
    return {"matmul": rates, "launch_s": _seconds(lambda: one.add_(1), device)}


def noise(device: str, samples: int) -> dict[str, float]:
    """Two copies of one function, sampled in turn: what differs is noise.

    gives  both relative to the median: difference of the two medians; spread, half the 5th to 95th percentile range
    """
    arrays = [torch.ones(2**20, device=device) for _ in range(4)]
    first = timer(lambda: torch.add(arrays[0], 1.0, out=arrays[1]), device)
    second = timer(lambda: torch.add(arrays[2], 1.0, out=arrays[3]), device)
    taken: tuple[list[float], list[float]] = ([], [])
    for clock in (first, second):
        clock.calibrate(0.005)
    for _ in range(samples):
        taken[0].extend(first.sample(1))
        taken[1].extend(second.sample(1))
    middle = statistics.median(taken[0] + taken[1])
    ordered = sorted(taken[0] + taken[1])
    low, high = ordered[len(ordered) // 20], ordered[-1 - len(ordered) // 20]
    difference = abs(statistics.median(taken[0]) - statistics.median(taken[1]))
    return {"difference": difference / middle, "spread": (high - low) / 2 / middle}


def _bandwidth(kernel: str, arrays: int, working_set: int, device: str) -> float:
    elements = working_set // arrays // 4
    a, b, *rest = (torch.ones(elements, device=device) for _ in range(arrays))
    if kernel == "copy":
        seconds = _seconds(lambda: a.copy_(b), device)
    else:
        seconds = _seconds(lambda: torch.add(b, rest[0], alpha=3.0, out=a), device)
    return elements * 4 * arrays / seconds


def _seconds(call: Callable[[], object], device: str) -> float:
    """The median of SAMPLES batches, per call."""
    clock = timer(call, device)
    clock.calibrate(0.005)
    return statistics.median(clock.sample(SAMPLES))
