"""Sampling a group: its implementations in turn, in random order, until what is asked of them is known well enough."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from perflab.analyse.overhead import of_rounds
from perflab.analyse.stats import median, relative_half_width
from perflab.measure.pool import Worker, WorkerFailure
from perflab.record import Latency, StopReason
from perflab.suite import Timing

#: Rounds after which an overhead's interval is looked at. Looking after every round would stop at intervals that are
#: narrow by chance, and miss the truth more often than they say.
LOOKS = (8, 12, 18, 27, 40, 60, 90, 135, 200, 300)
#: Rounds after which steps are profiled too: spread over the sampling, and so few that they do not take its time.
PROFILED = (2, *LOOKS[::2])
#: Samples taken from one implementation before the next has its turn; of steps as many as their session says.
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
        """A block of samples; the first one warms up."""
        start = time.monotonic()
        taken, self.host_bound = self.worker.ask("sample", count=BLOCK)
        if not self.discarded:
            self.discarded = len(taken)
        else:
            self.blocks.append(len(self.samples))
            self.samples += taken
        self.seconds += time.monotonic() - start

    def block_of_steps(self) -> None:
        """As `block`, of a model that warms up by itself."""
        taken, _ = self.worker.ask("sample", count=self.clock["block"])
        self.blocks.append(len(self.samples))
        self.samples += taken

    def profile(self) -> None:
        """A step told apart, if the case's are."""
        if self.clock["profiled"]:
            self.worker.ask("profile")

    def rounds(self) -> list[float]:
        """The median of every block."""
        return [median(self.samples[start:end]) for start, end in pairwise([*self.blocks, len(self.samples)])]

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
    running, results = _calibrate(workers, timing)
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


def sample_rounds(
    workers: Mapping[str, Worker], timing: Timing, seed: int, baseline: str
) -> dict[str, Latency | WorkerFailure]:
    """As `sample_group`, in rounds of one block each, until every overhead over the case `baseline` is known.

    All cases have a block in every round and stop together: what slows a round slows all of it. The worker
    of one that fails is closed at once, so that others have its memory.
    """
    running, results = _calibrate(workers, timing)
    order, start = random.Random(seed), time.monotonic()
    reason: StopReason | None = None
    done = 0

    def turn(take: Callable[[_Series], None]) -> None:
        for case_id in order.sample(sorted(running), len(running)):
            try:
                take(running[case_id])
            except WorkerFailure as failure:
                results[case_id] = failure
                running.pop(case_id).worker.close()

    while running and not reason:
        turn(_Series.block_of_steps)
        done += 1
        if done in PROFILED:
            turn(_Series.profile)
        reason = _reason(running, timing, baseline, time.monotonic() - start)
    for case_id, series in running.items():
        series.stop_reason = reason
        results[case_id] = series.finish(seed + len(series.samples))
    return results


def _calibrate(
    workers: Mapping[str, Worker], timing: Timing
) -> tuple[dict[str, _Series], dict[str, Latency | WorkerFailure]]:
    """The series of all workers that can be sampled, and how the others failed."""
    running: dict[str, _Series] = {}
    failed: dict[str, Latency | WorkerFailure] = {}
    for case_id, worker in workers.items():
        try:
            running[case_id] = _Series(worker, worker.ask("calibrate", batch_seconds=timing.batch_seconds))
        except WorkerFailure as failure:
            failed[case_id] = failure
    return running, failed


def _reason(running: Mapping[str, _Series], timing: Timing, baseline: str, seconds: float) -> StopReason | None:
    """Why no further round is needed, if none is."""
    if seconds >= timing.max_seconds:
        return "time_limit"
    if all(len(series.samples) >= timing.max_samples for series in running.values()):
        return "samples"
    if baseline not in running or len(running[baseline].blocks) not in LOOKS:
        return None
    rounds = {case_id: series.rounds() for case_id, series in running.items()}
    found = [of_rounds(rounds[case_id], rounds[baseline]) for case_id in running if case_id != baseline]
    known = [one for one in found if one and one.width <= 2 * timing.overhead]
    return "half_width" if len(known) == len(found) and found else None
