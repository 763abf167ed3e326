"""Sampling a group: its implementations in turn, in random order, until each is known well enough."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perflab.analyse.stats import relative_half_width
from perflab.measure.pool import Worker, WorkerFailure
from perflab.record import Latency, StopReason
from perflab.suite import Timing

#: Samples taken from one implementation before the next has its turn.
BLOCK = 5


@dataclass
class _Series:
    """What one implementation has given so far."""

    worker: Worker
    clock: dict[str, Any]
    samples: list[float] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    seconds: float = 0.0
    discarded: int = 0
    host_bound: int = 0
    stop_reason: StopReason | None = None

    def block(self) -> None:
        start = time.monotonic()
        taken, self.host_bound = self.worker.ask("sample", count=BLOCK)
        if not self.discarded:
            self.discarded = len(taken)
        else:
            self.blocks.append(len(self.samples))
            self.samples += taken
        self.seconds += time.monotonic() - start

    def decide(self, timing: Timing) -> None:
        """Set the reason to stop, if there is one."""
        enough = len(self.samples) >= timing.min_samples
        if enough and relative_half_width(self.samples) <= timing.half_width:
            self.stop_reason = "half_width"
        elif len(self.samples) >= timing.max_samples:
            self.stop_reason = "samples"
        elif self.samples and self.seconds >= timing.max_seconds:
            self.stop_reason = "time_limit"

    def finish(self, seed: int) -> Latency | WorkerFailure:
        """The latency, if the answer is still right after all those calls."""
        try:
            self.worker.ask("check_again", seed=seed)
        except WorkerFailure as failure:
            failure.text = f"after sampling: {failure.text}"
            return failure
        return self.latency()

    def latency(self) -> Latency:
        if self.stop_reason is None:
            raise RuntimeError("sampling has not stopped")
        return Latency(
            samples_s=self.samples,
            iterations=self.clock["iterations"],
            block_starts=self.blocks,
            cold=self.clock["cold"],
            timer=self.clock["timer"],
            stop_reason=self.stop_reason,
            discarded=self.discarded,
            host_bound=self.host_bound,
        )


def sample_group(workers: Mapping[str, Worker], timing: Timing, seed: int) -> dict[str, Latency | WorkerFailure]:
    """Latency of every worker's case, or how its worker failed; one bad case does not disturb the others."""
    results: dict[str, Latency | WorkerFailure] = {}
    running: dict[str, _Series] = {}
    for case_id, worker in workers.items():
        try:
            running[case_id] = _Series(worker, worker.ask("calibrate", batch_seconds=timing.batch_seconds))
        except WorkerFailure as failure:
            results[case_id] = failure
    order = random.Random(seed)
    while running:
        for case_id in order.sample(sorted(running), len(running)):
            series = running[case_id]
            try:
                series.block()
            except WorkerFailure as failure:
                results[case_id] = failure
                del running[case_id]
                continue
            series.decide(timing)
            if series.stop_reason:
                results[case_id] = series.finish(seed + len(series.samples))
                del running[case_id]
    return results
