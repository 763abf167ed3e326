"""`perflab list`: what there is, one line each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from perflab import suite as suites
from perflab.catalogue import Catalogue
from perflab.commands import common
from perflab.errors import unknown
from perflab.workspace import Workspace


def show(kind: str, kernels: Sequence[Path], explicit: Path | None) -> None:
    """Print every suite, stage, implementation, metric, chart or run with its caption."""
    if kind not in LISTS:
        raise unknown("kind of thing", kind, LISTS)
    place, catalogue = common.open_workspace(explicit, kernels)
    rows = list(LISTS[kind](place, catalogue))
    width = max((len(name) for name, _ in rows), default=0)
    for name, caption in rows:
        print(f"{name:<{width}}  {caption}".rstrip())


def _suites(place: Workspace, catalogue: Catalogue) -> Iterator[tuple[str, str]]:  # noqa: ARG001
    for name in suites.names(place.suites):
        yield name, suites.load(name, place.suites).question


def _stages(place: Workspace, catalogue: Catalogue) -> Iterator[tuple[str, str]]:  # noqa: ARG001
    for stage in catalogue.stages.values():
        yield stage.name, stage.caption


def _implementations(place: Workspace, catalogue: Catalogue) -> Iterator[tuple[str, str]]:  # noqa: ARG001
    for implementation in catalogue.implementations(wrong=True):
        yield implementation.name, implementation.problem or implementation.caption


def _metrics(place: Workspace, catalogue: Catalogue) -> Iterator[tuple[str, str]]:  # noqa: ARG001
    from perflab.analyse.derive import metrics

    for metric in metrics(place.dashboards):
        yield metric.name, f"[{metric.unit}, {metric.kind}] {metric.caption}"


def _charts(place: Workspace, catalogue: Catalogue) -> Iterator[tuple[str, str]]:  # noqa: ARG001
    from perflab.present.pages import charts

    for chart in charts(place.dashboards):
        yield chart.name, chart.caption


def _runs(place: Workspace, catalogue: Catalogue) -> Iterator[tuple[str, str]]:  # noqa: ARG001
    from perflab import store

    for run in store.runs(place.results):
        about = run.about()
        done = "interrupted" if about.get("interrupted", True) else f"{len(about.get('cases') or [])} cases"
        yield run.id, f"{about.get('suite_name', 'unknown')} on {about.get('device', 'unknown')}, {done}"


LISTS = {
    "suites": _suites,
    "stages": _stages,
    "implementations": _implementations,
    "metrics": _metrics,
    "charts": _charts,
    "runs": _runs,
}
