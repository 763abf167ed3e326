"""Bytes that a pass keeps and needs, from what the allocator hands out: exact.

Saved-tensor hooks would tell what autograd saves; they do not see what a function keeps past it, as selective
checkpointing does. So the graph is kept and everything else is let go: what is still alive then is what backward costs.

What a function makes in its first call and keeps between calls, such as a buffer in a global, is not seen.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.profiler import profile

from perflab.measure.passes import Work, has_backward
from perflab.record import Memory

#: The name that the profiler gives to an allocation or a release.
_EVENT = "[memory]"


def measure(work: Work, device: str) -> Memory:
    """Saved bytes of the forward pass, where the pass has a backward, and the high-water mark of the pass.

    saved_bytes  alive between forward and backward only because backward will need it; inputs are not counted, nor is
                 an output that backward does not need
    peak_bytes   most bytes alive at once during the pass, above those alive before it (for `backward`: above inputs,
                 outputs and what is saved)
    """
    high_water = _cuda_high_water if device == "cuda" else _cpu_high_water
    # Once unmeasured: torch and its libraries make some things when they are first needed.
    work.prepare()
    work.call()
    saved = high_water(lambda: _graph(work))[1] if has_backward(work.pass_) else None
    peak, _ = high_water(work.call)
    return Memory(saved_bytes=saved, peak_bytes=peak, source="allocator")


def measure_step(loss: Callable[[], object], step: Callable[[], object], device: str) -> Memory:
    """Bytes that the loss keeps while it waits for backward, and the high-water mark of a whole step."""
    high_water = _cuda_high_water if device == "cuda" else _cpu_high_water
    _, saved = high_water(loss)
    peak, _ = high_water(step)
    return Memory(saved_bytes=saved, peak_bytes=peak, source="allocator")


def _graph(work: Work) -> list[Any]:
    """The graph of one forward pass, without its outputs."""
    outputs = work.forward()
    return [t.grad_fn for t in (outputs if isinstance(outputs, tuple | list) else (outputs,)) if t.grad_fn is not None]


def _cpu_high_water(call: Callable[[], object]) -> tuple[int, int]:
    """Most bytes alive during the call, and bytes alive after it while its result is held, above those before."""
    # Cycles must not be let go in the midst.
    gc.collect()
    with profile(use_kineto=True, profile_memory=True) as profiler:
        held = call()
        gc.collect()
    events = [event for event in profiler.kineto_results.events() if event.name() == _EVENT]
    alive = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    del held
    return peak, alive


def _cuda_high_water(call: Callable[[], object]) -> tuple[int, int]:
    """As `_cpu_high_water`, from the bytes requested of the caching allocator, not those that it rounds them to."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats().get("requested_bytes.all.current", 0)
    held = call()
    gc.collect()
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    del held
    return (
        stats.get("requested_bytes.all.peak", 0) - before,
        stats.get("requested_bytes.all.current", 0) - before,
    )
