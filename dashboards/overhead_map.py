"""Projected: overhead by utilisation of the plain model and by the bandwidth that mHC's kernels reach.

The better a model uses its device, the more the same bytes weigh. Colours are of one machine; each line is where the
paper's claim comes out on one machine, everything else as assumed. Below and right of its line it costs more.
"""

from __future__ import annotations

from typing import Any

import pandas
import plotly.graph_objects as go

from . import _subject

PAGE, ORDER = "Overhead", 11
STEPS = 24
DASHES = ("solid", "dash", "dot", "dashdot")


def overhead_map(frame: pandas.DataFrame, about: dict[str, Any]) -> go.Figure | None:
    """A heat map of the paper's variant; None in a workspace without this subject."""
    overhead, report = _subject.module("overhead"), _subject.module("overhead_report")
    if overhead is None or report is None:
        return None
    projection = overhead.project(_subject.MODEL, _subject.quoted())
    claim = projection.assumptions.claim
    notes = [
        f"{overhead.PAPERS}; colours: {_subject.MACHINE}; lines: {claim:.1%}",
        *_subject.assumed(projection, report),
    ]
    figure = _subject.figure(460, notes)
    x, y = _steps(overhead, "utilisation"), _steps(overhead, "achieved")
    z = _values(projection, x, y)
    figure.add_heatmap(
        x=x, y=y, z=z, colorscale="Viridis", reversescale=True, name=_subject.MACHINE,
        colorbar={"tickformat": ".0%", "thickness": 12, "len": 0.9}, hoverinfo="text",
        hovertext=[[f"{_subject.MACHINE}: {value:.1%} at utilisation {u:.2f}, {b:.2f} of the bandwidth, projected"
                    for u, value in zip(x, row, strict=True)] for b, row in zip(y, z, strict=True)],
    )  # fmt: skip
    # Machines that differ in their links alone have one line.
    alike: dict[tuple[tuple[float, ...], ...], list[str]] = {}
    for name in _subject.quoted_names():
        values = _values(overhead.project(_subject.MODEL, _subject.quoted(name)), x, y)
        alike.setdefault(tuple(map(tuple, values)), []).append(name)
    for dash, (values, names) in zip(DASHES, alike.items(), strict=False):
        figure.add_contour(
            x=x, y=y, z=[list(row) for row in values], name=", ".join(names),
            contours={"start": claim, "end": claim, "size": 1, "coloring": "none"}, showscale=False, showlegend=True,
            line={"color": "#d55e00", "width": 3, "dash": dash}, hoverinfo="skip",
        )  # fmt: skip
    figure.update_xaxes(title={"text": "utilisation of the plain model"}, tickformat=".0%", fixedrange=True)
    figure.update_yaxes(title={"text": "achieved bandwidth"}, tickformat=".0%", fixedrange=True, automargin=True)
    return figure


def _steps(overhead: Any, name: str) -> list[float]:
    """The assumption's range in equal steps."""
    told = overhead.stated_fields()[name].metadata
    return [told["low"] + (told["high"] - told["low"]) * step / STEPS for step in range(STEPS + 1)]


def _values(projection: Any, x: list[float], y: list[float]) -> list[list[float]]:
    return [[projection.with_(utilisation=u, achieved=b).overhead() for u in x] for b in y]
