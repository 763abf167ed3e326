"""Steps that runs timed, beside the baseline of their group: what a projection can be held to."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from perflab import machines, store
from perflab.analyse.overhead import Overhead, overhead
from perflab.analyse.stats import median
from perflab.record import Record


@dataclass(frozen=True)
class TimedStep:
    """One implementation's step: median seconds, the baseline's, FLOPs by the model's own count."""

    run_id: str
    implementation: str
    dtype: str
    device: str
    step_s: float
    baseline_s: float
    flops: float
    overhead: Overhead | None

    @property
    def extra_s(self) -> float:
        """Seconds beyond the baseline's."""
        return self.step_s - self.baseline_s


def pairs(records: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    """Every timed step but the baselines, each with the baseline of its group."""
    timed = [record for record in records if record.step and record.latency]
    for record in timed:
        for baseline in timed:
            is_baseline = baseline.implementation == f"{record.stage}/{record.baseline}"
            if is_baseline and baseline is not record and _group(baseline) == _group(record):
                yield record, baseline


def timed_steps(records: Sequence[Record], preset: str) -> list[TimedStep]:
    """Those of a preset's own sizes."""
    return [
        TimedStep(
            record.run_id, record.implementation.removeprefix(record.stage + "/"), record.dtype, record.device,
            median(record.latency.samples_s), median(baseline.latency.samples_s), record.step.flops,
            overhead(record.latency, baseline.latency),
        )
        for record, baseline in pairs(records)
        if record.label == preset and record.latency and baseline.latency and record.step
    ]  # fmt: skip


def newest_here(results: Path, preset: str, implementations: Collection[str], dtype: str) -> list[TimedStep]:
    """Steps of the preset by the newest run on this machine that timed one of the implementations so; else none.

    On a machine with a GPU those are steps on the GPU.
    """
    for run in reversed(store.runs(results)):
        about = run.about()
        if machines.is_here(about):
            device = "cuda" if about["machine"].get("gpus") else "cpu"
            found = [one for one in timed_steps(run.records(), preset) if (one.dtype, one.device) == (dtype, device)]
            if any(one.implementation in implementations for one in found):
                return found
    return []


def _group(record: Record) -> tuple[object, ...]:
    return record.stage, record.shape, record.dtype, record.device
