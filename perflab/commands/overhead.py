"""`perflab overhead`: what the workspace's subject adds to a training step, projected, without measuring anything."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from perflab import machines, workspace
from perflab.analyse import steps
from perflab.catalogue import load_module
from perflab.errors import PerflabError, unknown

LINKS = ("network", "nvlink")
FORMATS = ("table", "json", "markdown")
#: Numbers of the machine that may be given as assumptions; the rest is the subject's.
OF_THE_MACHINE = ("peak", "bandwidth", "launch", "memory")


@dataclass(frozen=True)
class Choice:
    """What the command line says; given: assumptions by name."""

    model: str
    machine: str
    given: dict[str, float] = field(default_factory=dict)
    link: str = "network"
    format_: str = "table"


def show(choice: Choice, results: Path | None, explicit: Path | None) -> None:
    """Print the projection.

    Fails: PerflabError for a name or number that cannot be, or where no subject has projections.
    """
    if choice.format_ not in FORMATS:
        raise unknown("format", choice.format_, FORMATS)
    if choice.link not in LINKS:
        raise unknown("link", choice.link, LINKS)
    place = workspace.find(explicit=explicit, results=results)
    overhead, report = (_load(place, name) for name in ("overhead", "overhead_report"))
    if choice.model not in overhead.presets():
        raise unknown("model", choice.model, overhead.presets())
    machine = machines.load(
        choice.machine, place.results, {key: choice.given[key] for key in OF_THE_MACHINE if key in choice.given}
    )
    rest = {key: number for key, number in choice.given.items() if key not in OF_THE_MACHINE}
    try:
        projection = overhead.project(choice.model, machine, rest, choice.link)
        here = choice.machine == machines.HERE
        timed = steps.newest_here(place.results, choice.model, overhead.as_steps(), projection.dtype) if here else []
        _print(report, projection, timed, choice.format_)
    except ValueError as error:
        raise PerflabError(str(error)) from error


def assumed(texts: list[str], named: dict[str, float | None]) -> dict[str, float]:
    """Assumptions from `NAME=VALUE` and from options of their own, where given. Fails: PerflabError for no number."""
    found = {name: number for name, number in named.items() if number is not None}
    for text in texts:
        name, equals, written = text.partition("=")
        try:
            number = float(written)
        except ValueError:
            raise PerflabError(f"--assume {text}: expected NAME=NUMBER, such as exposed=0.5") from None
        if not equals or name in found:
            raise PerflabError(f"--assume {text}: given twice")
        found[name] = int(number) if number.is_integer() else number
    return found


def _load(place: workspace.Workspace, stem: str) -> ModuleType:
    files = sorted(place.kernels.glob(f"*/{stem}.py"))
    if len(files) != 1:
        raise PerflabError(f"{place.kernels}: expected one subject with {stem}.py, found {len(files)}")
    return load_module(files[0])


def _print(report: Any, projection: Any, timed: list[steps.TimedStep], format_: str) -> None:
    if format_ == "json":
        print(json.dumps(report.data(projection, timed), indent=1))
        return
    parts = list(report.sections(projection, timed))
    from perflab.present import sections

    if format_ == "markdown":
        print(sections.markdown(parts))
        return
    from rich.console import Console

    console = Console()
    sections.print_sections(console if console.is_terminal else Console(width=160), parts)
