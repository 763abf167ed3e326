"""`perflab show` and `perflab keep`."""

from __future__ import annotations

from pathlib import Path

from perflab import store, workspace
from perflab.commands import common


def show(name: str | None, format_: str, results: Path | None, explicit: Path | None) -> None:
    """Print a run with its derived columns."""
    common.check_format(format_)
    place = workspace.find(explicit=explicit, results=results)
    common.print_run(store.find(place.results, name), place, format_)


def keep(name: str | None, results: Path | None, explicit: Path | None) -> None:
    """Move a local run to where git sees it, and say where."""
    place = workspace.find(explicit=explicit, results=results)
    print(store.keep(store.find(place.results, name), place.results).folder)
