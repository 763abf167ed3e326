"""What several commands need: the catalogue, the device, a run's columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perflab import store, workspace
from perflab.catalogue import Catalogue, discover
from perflab.errors import PerflabError, unknown
from perflab.record import Record

FORMATS = ("table", "json", "csv", "markdown")
DEVICES = ("auto", "cpu", "cuda")


def open_workspace(
    explicit: Path | None, kernels: Sequence[Path] = (), results: Path | None = None
) -> tuple[workspace.Workspace, Catalogue]:
    """The workspace and everything in it, with the implementations from `kernels`."""
    place = workspace.find(explicit=explicit, results=results)
    return place, discover(place.kernels, kernels)


def choose_device(wanted: str) -> tuple[str, bool]:
    """The device to plan for and whether it is here; `auto` takes the GPU if there is one."""
    from perflab import machine

    if wanted not in DEVICES:
        raise unknown("device", wanted, DEVICES)
    if wanted == "cpu":
        return "cpu", True
    has_gpu = bool(machine.gpus())
    if wanted == "auto":
        return ("cuda" if has_gpu else "cpu"), True
    return "cuda", has_gpu


def check_format(name: str) -> str:
    """`name` if it is a format. Fails: PerflabError with the near ones."""
    if name not in FORMATS:
        raise unknown("format", name, FORMATS)
    return name


def derived_columns(
    run: store.Run, place: workspace.Workspace
) -> tuple[list[Record], dict[str, Any], list[dict[str, float | None]]]:
    """A run's records, its run.json and the derived columns of each record."""
    from perflab.analyse import derive

    records, about = derive.in_order(run.records()), run.about()
    return records, about, derive.derive(records, about, derive.metrics(place.dashboards))


def print_run(run: store.Run, place: workspace.Workspace, format_: str) -> None:
    """Print a run to stdout in one of FORMATS. Fails: PerflabError if it holds no records."""
    records, about, derived = derived_columns(run, place)
    if not records and format_ == "table":
        raise PerflabError(f"{run.id} holds no records")
    if format_ in ("json", "csv"):
        from perflab.present import formats

        print(formats.as_json(records, derived) if format_ == "json" else formats.as_csv(records, derived))
        return
    from rich.console import Console

    from perflab.analyse.derive import metrics
    from perflab.present import table

    parts = table.blocks(records, derived, metrics(place.dashboards))
    if format_ == "markdown":
        print(table.markdown(parts, about))
    else:
        console = Console()
        table.print_table(console if console.is_terminal else Console(width=160), parts, about)
