"""What a recompute block of L_r sites costs: bytes kept, the peak of a training step, and its time.

The dashed line is equation 20 of arXiv 2512.24880, nC ceil(L / L_r) + (n + 2) C L_r elements a token. It leaves out
what no block changes: F's outputs, coefficients, gradients and temporaries. A peak that follows it stands the same
distance above it at every L_r. At the left, "all kept", nothing is recomputed.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas
import plotly.graph_objects as go

from perflab.present import panels, units
from perflab.present.figure import bare

from .metrics.eq20_bytes import elements

PAGE = "Recompute"
ORDER = 4
STAGE, PASS = "mhc/stack", "forward_backward"
#: Panels of a family: what a line shows, its axis title, the tick's suffix.
SHOWN = (("saved_bytes", "bytes kept", "B"), ("peak_bytes", "peak of the step", "B"), ("latency_s", "time", "s"))
_LEGEND, _PANEL, _GAP, _LINE = 60, 210, 74, 17  # pixels: the names, a panel, the space below it, a line of words
_WIDTH, _NAME = 50, 24  # characters that fit a phone: of a line of words, of a name in the legend


@dataclass(frozen=True)
class Family:
    """The cases that differ in their block and implementation alone."""

    title: str
    cases: list[Any]

    def lines(self) -> Iterator[tuple[str, list[Any]]]:
        """Cases by implementation, by their block."""
        for name in dict.fromkeys(case.implementation for case in self.cases):
            mine = [case for case in self.cases if case.implementation == name]
            yield name, sorted(mine, key=lambda case: case.sizes["L_r"])

    def shown(self) -> list[tuple[str, str, str]]:
        """The panels that any case has a number for."""
        return [panel for panel in SHOWN if any(pandas.notna(getattr(case, panel[0])) for case in self.cases)]

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes that all cases share."""
        return {dim: size for dim, size in self.cases[0].sizes.items() if dim != "L_r"}


def recompute(frame: pandas.DataFrame, about: dict[str, Any]) -> go.Figure | None:
    """Up to three panels for each shape and dtype; None where the run has no training step of a stack."""
    frame = frame[(frame["stage"] == STAGE) & (frame["pass"] == PASS)]
    if frame.empty:
        return None
    parts = list(families(frame))
    figure = bare(margin={"l": 8, "r": 8, "t": _LEGEND, "b": 0}, meta={"notes": notes(parts)})
    told = [_wrapped(part) for part in parts]
    heights = [
        _LINE * (len(lines) + 1) + len(part.shown()) * (_PANEL + _GAP) for part, lines in zip(parts, told, strict=True)
    ]
    total, top, number = sum(heights), 0, 0
    figure.update_layout(height=total + _LEGEND)
    for part, lines, height in zip(parts, told, heights, strict=True):
        _write(figure, lines, 1 - top / total)
        upper = top + _LINE * (len(lines) + 1)
        for column, title, suffix in part.shown():
            number += 1
            _axes(figure, number, (1 - (upper + _PANEL) / total, 1 - upper / total), (part, title, suffix))
            figure.add_traces(list(_traces(part, column, number)))
            upper += _PANEL + _GAP
        top += height
    _name_once(figure)
    return figure


def families(frame: pandas.DataFrame) -> Iterator[Family]:
    """Cases of one shape but for L_r, dtype and device together, in the order of the records."""
    members: dict[tuple[object, ...], list[Any]] = {}
    for case in frame.itertuples(index=False):
        sizes = " ".join(f"{dim}={size}" for dim, size in case.sizes.items() if dim != "L_r")
        members.setdefault((sizes, case.dtype, case.device), []).append(case)
    for (sizes, dtype, device), cases in members.items():
        yield Family(f"{STAGE} {sizes} {dtype} on {device}", cases)


def words(part: Family) -> list[str]:
    """The blocks that equation 20 finds best, and those where each implementation's peak is least."""
    n, L = part.sizes["n"], part.sizes["L"]
    counted = {block: elements(n, L, block) for block in range(1, L + 1)}
    told = [f"Equation 20 is least at L_r = {_least(counted)}."]
    for name, cases in part.lines():
        peaks = {case.sizes["L_r"]: case.peak_bytes for case in cases if pandas.notna(case.peak_bytes)}
        blocks = {block: peak for block, peak in peaks.items() if block}
        if blocks:
            tried = ", ".join(map(str, blocks))
            least = f"{_short(name)}: peak least at L_r = {_least(blocks)}, {units.size(min(blocks.values()))}"
            whole = f"; {units.size(peaks[0])} with all kept" if 0 in peaks else ""
            told.append(f"{least} (tried {tried}){whole}")
    return told


def _wrapped(part: Family) -> list[str]:
    """The family's title and words, in lines that fit."""
    title = [f"<b>{panels.plain(line)}</b>" for line in textwrap.wrap(part.title, _WIDTH - 14)]
    return [*title, *(panels.plain(row) for line in words(part) for row in textwrap.wrap(line, _WIDTH))]


def notes(parts: list[Family]) -> list[str]:
    """Cases that are missing from a panel, with the reason."""
    missing: dict[str, dict[str, list[str]]] = {}
    for case in (case for part in parts for case in part.cases):
        why = panels.unmeasured(case)
        why = why or ("memory not measured" if pandas.isna(case.peak_bytes) else None)
        why = why or (f"not timed: {case.execution} only" if pandas.isna(case.latency_s) else None)
        if why:
            blocks = missing.setdefault(why, {}).setdefault(f"{_short(case.implementation)} {case.dtype}", [])
            blocks.append(str(case.sizes["L_r"]))
    return [
        f"{why}: " + "; ".join(f"{name} at L_r = {', '.join(blocks)}" for name, blocks in names.items())
        for why, names in missing.items()
    ]


def _least(values: dict[int, float]) -> str:
    """Where the values are least: one block, or several that tie."""
    return " or ".join(str(block) for block, value in values.items() if value == min(values.values()))


def _short(name: str) -> str:
    return name.removeprefix(f"{STAGE}/")


def _traces(part: Family, column: str, number: int) -> Iterator[dict[str, Any]]:
    """Equation 20's curve where peaks are shown, and a line of each implementation."""
    place = {"xaxis": f"x{number}", "yaxis": f"y{number}"}
    if column == "peak_bytes":
        counted = {case.sizes["L_r"]: case.eq20_bytes for case in part.cases if pandas.notna(case.eq20_bytes)}
        blocks = sorted(counted)
        yield place | {
            "name": "equation 20", "mode": "lines", "line": {"dash": "dash", "width": 2, "color": panels.GREY},
            "x": blocks, "y": [counted[block] for block in blocks], "hoverinfo": "text",
            "hovertext": [f"equation 20: {units.size(counted[block])} at L_r = {block}" for block in blocks],
        }  # fmt: skip
    write = units.seconds if column == "latency_s" else units.size
    toolkits: set[str] = set()
    for name, cases in part.lines():
        drawn = [case for case in cases if pandas.notna(getattr(case, column))]
        if not drawn:
            continue
        # A toolkit has one colour: its further implementations are dotted.
        dash = "dot" if drawn[0].toolkit in toolkits else "solid"
        toolkits.add(drawn[0].toolkit)
        yield place | {
            "name": panels.plain(panels.clip(_short(name), _NAME)),
            "mode": "lines+markers", "marker": {"size": 8, "color": panels.colour(drawn[0])},
            "line": {"width": 2, "color": panels.colour(drawn[0]), "dash": dash},
            "x": [case.sizes["L_r"] for case in drawn], "y": [getattr(case, column) for case in drawn],
            "hoverinfo": "text",
            "hovertext": [
                panels.hover(name, f"L_r = {case.sizes['L_r'] or 'none, all kept'}", write(getattr(case, column)))
                for case in drawn
            ],
        }  # fmt: skip


def _axes(figure: go.Figure, number: int, domain: tuple[float, float], told: tuple[Family, str, str]) -> None:
    part, title, suffix = told
    blocks = sorted({case.sizes["L_r"] for case in part.cases})
    figure.update_layout({
        f"xaxis{number}": {
            "anchor": f"y{number}", "fixedrange": True, "zeroline": False, "tickvals": blocks,
            "ticktext": [str(block) if block else "all kept" for block in blocks],
            "title": {"text": f"{title}, by L_r", "standoff": 6},
        },
        f"yaxis{number}": {
            "anchor": f"x{number}", "fixedrange": True, "domain": domain, "rangemode": "tozero", "nticks": 5,
            "tickformat": "~s", "ticksuffix": suffix, "automargin": True,
        },
    })  # fmt: skip


def _write(figure: go.Figure, lines: list[str], top: float) -> None:
    figure.add_annotation(
        text="<br>".join(lines), showarrow=False, align="left", xref="paper", x=0, xanchor="left", yref="paper",
        y=top, yanchor="top",
    )  # fmt: skip


def _name_once(figure: go.Figure) -> None:
    """Each name stands once in the legend, which shows and hides its lines in all panels."""
    named: set[str] = set()
    for trace in figure.data:
        trace.update(legendgroup=trace.name, showlegend=trace.name not in named)
        named.add(trace.name)
