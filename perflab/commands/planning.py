"""`perflab plan`: what would be measured here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from perflab import suite as suites
from perflab.commands import common
from perflab.measure.task import execution
from perflab.plan import Case, make_plan


def show(name: str, only: Sequence[str], wanted_device: str, kernels: Sequence[Path], explicit: Path | None) -> None:
    """Print every group and how each of its cases would run."""
    place, catalogue = common.open_workspace(explicit, kernels)
    suite = suites.load(name, place.suites)
    device, available = common.choose_device(wanted_device)
    plan = make_plan(suite, catalogue, device, only, available)
    print(suite.question)
    for group in plan.groups:
        print(f"\n{group.title}")
        for case in group.cases:
            print(f"  {case.implementation.stem:<28} {_fate(case)}")
    counts = Counter(_fate(case).partition(":")[0] for case in plan.cases())
    summary = ", ".join(f"{count} {fate}" for fate, count in sorted(counts.items()))
    print(f"\n{sum(counts.values())} cases in {len(plan.groups)} groups on {device}: {summary}")


def _fate(case: Case) -> str:
    if case.blocked:
        status, reason = case.blocked
        return f"{status}: {reason.text}"
    return execution(case.implementation.toolkit, case.device)
