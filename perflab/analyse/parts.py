"""Where an overhead comes from: what every part of a step takes beyond the baseline's."""

from __future__ import annotations

from dataclasses import dataclass

from perflab.analyse.stats import median
from perflab.record import Record

#: What no named part did: time between operations, and of a device that waits.
UNNAMED = ("other", "device waits")


@dataclass(frozen=True)
class Difference:
    """One part in one phase: seconds and launches beyond the baseline's, negative where it takes less."""

    name: str
    phase: str
    seconds: float
    launches: int


def differences(record: Record, baseline: Record) -> list[Difference]:
    """Every part of either step, the largest first; empty unless both were told apart."""
    if record.step is None or baseline.step is None or not record.step.parts or not baseline.step.parts:
        return []
    mine = {(part.name, part.phase): part for part in record.step.parts}
    theirs = {(part.name, part.phase): part for part in baseline.step.parts}
    found = []
    for key in mine.keys() | theirs.keys():
        one, other = mine.get(key), theirs.get(key)
        seconds = (one.seconds if one else 0.0) - (other.seconds if other else 0.0)
        launches = (one.launches if one else 0) - (other.launches if other else 0)
        found.append(Difference(*key, seconds, launches))
    return sorted(found, key=lambda one: (-one.seconds, one.name, one.phase))


def measured(record: Record, baseline: Record) -> float | None:
    """Seconds of a step beyond the baseline's, as timed without a profile: of the medians."""
    if record.latency is None or baseline.latency is None:
        return None
    return median(record.latency.samples_s) - median(baseline.latency.samples_s)


def explained(record: Record, baseline: Record) -> float | None:
    """The share of the measured difference that named parts sum up to; None unless both are known."""
    whole, parts = measured(record, baseline), differences(record, baseline)
    if not whole or not parts:
        return None
    return sum(part.seconds for part in parts if part.name not in UNNAMED) / whole
