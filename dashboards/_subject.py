"""The modules of the workspace's kernels that charts draw from, and the layout that they share."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import plotly.graph_objects as go

from perflab import machines
from perflab.catalogue import load_module
from perflab.present.figure import bare

KERNELS = Path(__file__).resolve().parent.parent / "kernels" / "mhc"
#: What projections on pages are of: the model of the claim, and a machine whose memory holds it in few devices.
MODEL, MACHINE = "27b", "h200"
#: Okabe and Ito's colours, by cause.
COLOURS = {
    "read": "#0072b2", "write": "#56b4e9", "meeting": "#7f7f7f", "products": "#8c564b", "launches": "#e69f00",
    "rebuild": "#009e73", "messages": "#d55e00", "idle": "#cc79a7", "residual": "#a0a0a0",
}  # fmt: skip


def module(name: str) -> ModuleType | None:
    """A file of kernels/mhc beside these dashboards; None in a workspace that has no such subject."""
    path = KERNELS / f"{name}.py"
    return load_module(path) if path.is_file() else None


def quoted(name: str = MACHINE) -> machines.Machine:
    """One of the machines whose numbers are quoted; no run is looked at."""
    return machines.load(name, KERNELS)


def quoted_names() -> list[str]:
    """Their names."""
    return [name for name in machines.names() if name != machines.HERE]


def figure(height: int, notes: list[str], **layout: Any) -> go.Figure:
    """An empty figure in the form of the others, with its notes."""
    return bare(**({"height": height, "margin": {"l": 8, "r": 8, "t": 60, "b": 50}, "meta": {"notes": notes}} | layout))


def assumed(projection: Any, report: ModuleType) -> list[str]:
    """Notes that say what a projection rests on."""
    overhead = load_module(KERNELS / "overhead.py")
    a = projection.assumptions
    told = ", ".join(f"{name} {report.value(name, getattr(a, name))}" for name in overhead.stated_fields())
    return [
        f"projected, not measured: {projection.model} on {projection.machine}; {told}",
        f"bytes counted in {', '.join(report.runs())}; sources of all assumptions: `perflab overhead`",
    ]
