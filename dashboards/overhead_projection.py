"""Projected: what four streams add to a training step, by cause, in percent of the plain model's step.

Bytes are counted, everything else is assumed; the notes below say what. Eager kernels have an axis of their own. Left
of zero stands what the plain residual moves, which mHC replaces. The dashed line is the paper's claim.
"""

from __future__ import annotations

from typing import Any

import pandas
import plotly.graph_objects as go

from perflab.present import panels

from . import _subject

PAGE, ORDER = "Overhead", 10


def overhead_projection(frame: pandas.DataFrame, about: dict[str, Any]) -> go.Figure | None:
    """Stacked bars, a row per variant; None in a workspace without this subject."""
    overhead, report = _subject.module("overhead"), _subject.module("overhead_report")
    if overhead is None or report is None:
        return None
    projection = overhead.project(_subject.MODEL, _subject.quoted())
    base = projection.baseline()
    spent = {name: projection.seconds(name) for name in overhead.VARIANTS}
    claim = projection.assumptions.claim
    figure = _subject.figure(420, _subject.assumed(projection, report), barmode="relative", bargap=0.45)
    naive, fused = [name for name in spent if name == "naive"], [name for name in spent if name != "naive"]
    for number, names in enumerate((fused, naive), 1):
        for cause in (one for one in overhead.CAUSES if any(spent[name][one] for name in spent)):
            values = [100 * spent[name][cause] / base for name in names]
            figure.add_bar(
                orientation="h", y=[_row(name) for name in names], x=values, name=report.WORDS[cause],
                legendgroup=cause, showlegend=number == 1, marker={"color": _subject.COLOURS[cause]},
                xaxis=f"x{number}", yaxis=f"y{number}", hoverinfo="text",
                hovertext=[panels.hover(f"{name}: {report.WORDS[cause]} {value:.2f}%, projected")
                           for name, value in zip(names, values, strict=True)],
            )  # fmt: skip
        totals = [projection.overhead(name) for name in names]
        figure.add_scatter(
            x=[100 * sum(max(0, one) for one in spent[name].values()) / base for name in names],
            y=[_row(name) for name in names], mode="text", text=[f" <b>{total:.1%}</b>" for total in totals],
            textposition="middle right", cliponaxis=False, showlegend=False, hoverinfo="skip", name="in all",
            xaxis=f"x{number}", yaxis=f"y{number}",
        )  # fmt: skip
        widest = max(sum(max(0, one) for one in spent[name].values()) / base for name in names)
        figure.add_shape(
            type="line", x0=100 * claim, x1=100 * claim, y0=-0.5, y1=len(names) - 0.5, xref=f"x{number}",
            yref=f"y{number}", line={"dash": "dash", "width": 1.5, "color": panels.GREY},
        )  # fmt: skip
        _axes(figure, number, (0.36, 1.0) if number == 1 else (0.0, 0.16), 130 * widest)
    return figure


def _row(name: str) -> str:
    return name.replace(" + ", " +<br>")


def _axes(figure: go.Figure, number: int, domain: tuple[float, float], widest: float) -> None:
    figure.update_layout({
        f"xaxis{number}": {
            "anchor": f"y{number}", "fixedrange": True, "ticksuffix": "%", "range": [-0.12 * widest, widest],
            "title": {"text": "of the plain step, projected", "standoff": 6}, "nticks": 6,
        },
        f"yaxis{number}": {
            "anchor": f"x{number}", "fixedrange": True, "domain": domain, "autorange": "reversed", "automargin": True,
        },
    })  # fmt: skip
