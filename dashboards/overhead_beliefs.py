"""Projected: how far each assumption alone moves the overhead, and what one would have to believe for the claim.

A bar spans the overhead from one end of an assumption's range to the other, the others as assumed: orange where the
value is higher. The upright line is the projection, the dashed one the paper's claim; the words at the right say the
value at which the claim comes out.
"""

from __future__ import annotations

from typing import Any

import pandas
import plotly.graph_objects as go

from perflab.present import panels

from . import _subject

PAGE, ORDER = "Overhead", 12
LOW, HIGH = "#56b4e9", "#d55e00"


def overhead_beliefs(frame: pandas.DataFrame, about: dict[str, Any]) -> go.Figure | None:
    """A tornado, the widest bar on top; None in a workspace without this subject."""
    overhead, report = _subject.module("overhead"), _subject.module("overhead_report")
    if overhead is None or report is None:
        return None
    projection = overhead.project(_subject.MODEL, _subject.quoted())
    a, now = projection.assumptions, projection.overhead()
    needed = dict(overhead.believed(projection))
    bars = sorted(overhead.sensitivity(projection), key=lambda bar: abs(bar[4] - bar[2]))
    figure = _subject.figure(
        80 + 44 * len(bars), [overhead.PAPERS, *_subject.assumed(projection, report)], barmode="overlay", bargap=0.55,
        showlegend=False, margin={"l": 8, "r": 8, "t": 16, "b": 50},
    )  # fmt: skip
    names = [bar[0] for bar in bars]
    for colour, value, at in ((LOW, 1, 2), (HIGH, 3, 4)):
        figure.add_bar(
            orientation="h", y=names, base=[100 * now] * len(bars), x=[100 * (bar[at] - now) for bar in bars],
            marker={"color": colour}, hoverinfo="text", name="low" if at == 2 else "high",
            hovertext=[panels.hover(f"{bar[0]} {report.value(bar[0], bar[value])}: {bar[at]:.1%}, projected")
                       for bar in bars],
        )  # fmt: skip
    figure.add_scatter(
        x=[100 * max(now, a.claim, bar[2], bar[4]) for bar in bars], y=names, mode="text", textposition="middle right",
        text=[f"  {_needed(report, name, needed[name], a.claim)}" for name in names], hoverinfo="skip", name="needed",
        cliponaxis=False,
    )  # fmt: skip
    for x, dash in ((now, "solid"), (a.claim, "dash")):
        figure.add_vline(x=100 * x, line={"dash": dash, "width": 1.5, "color": panels.GREY})
    widest = max(100 * max(bar[2], bar[4]) for bar in bars)
    figure.update_xaxes(
        ticksuffix="%", range=[0, 2 * widest], fixedrange=True, title={"text": "overhead, projected"}, nticks=6
    )
    figure.update_yaxes(fixedrange=True, automargin=True)
    return figure


def _needed(report: Any, name: str, found: Any, claim: float) -> str:
    if found is None:
        return f"no value gives {claim:.1%}"
    if isinstance(found, tuple):
        return f"{claim:.1%} between {found[0]} and {found[1]}"
    return f"{claim:.1%} at {report.value(name, found)}"
