"""Gain of the composite mixing matrix over all sites, and how far single matrices are from doubly stochastic.

All groups are shown, whatever is chosen above. Gains are the largest column sums of the product of all sites' matrices
(backward), as means over tokens; the forward gain is in the label under the pointer. The second panel is the first with
mHC (gain) alone. Unconstrained hyper-connections (gain_hc) iterate nothing, so their lines run across. The column error
is the largest |column sum - 1| of a single matrix. Implementations that agree show as rings around one another. Grey
long dashes are the paper's numbers, of a trained model with 60 sites; all else is measured, of random matrices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas
import plotly.graph_objects as go

from perflab.present import panels
from perflab.present.figure import bare

ORDER = 5
STAGES = ("gain", "gain_hc")
ITERATIONS = "t_max"
#: arXiv 2512.24880, figures 3 and 7: composite gains of the trained 27B models, 60 sites.
PAPER_HC, PAPER_MHC = 3000.0, 1.6
DASHES = ("dot", "dash", "solid", "dashdot")
#: The first implementation's mark, and what each further one, which may lie on it, is wider.
SIZE, WIDER = 6, 4


@dataclass(frozen=True)
class Line:
    """The cases of one stage and implementation that differ in iterations only.

    label  what tells it from the implementation's other lines: "s=8"
    order  of the label among those of the stage, and of the implementation among the stage's
    """

    label: str
    order: tuple[int, int]
    cases: list[Any]


def stability(frame: pandas.DataFrame, about: dict[str, Any]) -> go.Figure | None:
    """Two panels over the iterations; None for a run without the stages that have gains."""
    own = frame[[stage.rpartition("/")[2] in STAGES for stage in frame["stage"]]]
    if own.empty:
        return None
    cases = list(own.itertuples(index=False))
    iterations = sorted({case.sizes[ITERATIONS] for case in cases if ITERATIONS in case.sizes}) or [1]
    figure = _lay_out(iterations)
    across = [iterations[0], max(iterations[-1], iterations[0] + 1)]
    lines = list(_lines([case for case in cases if _recorded(case)]))
    highest = max((line.order[0] for line in lines), default=0)
    for line in lines:
        iterated = ITERATIONS in line.cases[0].sizes
        _draw(figure, line, ("gain_backward", ""), across, None if iterated else "top right")
        if iterated:
            _draw(figure, line, ("gain_backward", "2"), across, "top right")
            # Errors fall to the right: the highest line has room above its left end, the others below their right end.
            _draw(
                figure, line, ("column_error", "3"), across, "top right" if line.order[0] == highest else "bottom left"
            )
    for gain, panel in ((PAPER_HC, ""), (PAPER_MHC, ""), (PAPER_MHC, "2")):
        _draw_paper(figure, gain, panel, across)
    without = [case for case in cases if not _recorded(case)]
    notes = [f"{panels.unmeasured(case) or 'gains not recorded'}: {_name(case)} {case.shape}" for case in without]
    figure.layout.meta = {"notes": notes}
    return figure


def _recorded(case: Any) -> bool:
    return {"gain_backward", "column_error"} <= set(case.observed)


def _lines(cases: list[Any]) -> Iterator[Line]:
    """The cases, by stage, implementation and every dimension but the iterations."""
    for stage in dict.fromkeys(case.stage for case in cases):
        members = [case for case in cases if case.stage == stage]
        dims = [dim for dim in members[0].sizes if dim != ITERATIONS]
        telling = [dim for dim in dims if dim == "s" or len({case.sizes[dim] for case in members}) > 1]
        found: dict[tuple[str, str], list[Any]] = {}
        for case in sorted(members, key=lambda case: [case.sizes[dim] for dim in (*telling, *case.sizes)]):
            label = " ".join(f"{dim}={case.sizes[dim]}" for dim in telling)
            found.setdefault((label, case.implementation), []).append(case)
        labels = list(dict.fromkeys(label for label, _ in found))
        names = list(dict.fromkeys(case.implementation for case in members))
        for (label, name), together in found.items():
            yield Line(label, (labels.index(label), names.index(name)), together)


def _draw(figure: go.Figure, line: Line, what: tuple[str, str], across: list[int], place: str | None) -> None:
    """One line of marks in a panel; of the first implementation's, the number at one end is written out.

    what   the observed output, and the panel
    place  of the text: "top right" of the left end, "bottom left" of the right end, or None for no text
    """
    (name, panel), first, (label, index) = what, line.cases[0], line.order
    iterated = ITERATIONS in first.sizes
    cases = line.cases if iterated else [first, first]
    x = [case.sizes[ITERATIONS] for case in cases] if iterated else across
    common = {"xaxis": f"x{panel}", "yaxis": f"y{panel}", "showlegend": False}
    figure.add_scatter(
        name=name, mode="lines+markers", hoverinfo="text", x=x, y=[case.observed[name] for case in cases],
        line={"color": panels.colour(first), "width": 1.5, "dash": DASHES[label % len(DASHES)]},
        marker={"symbol": "circle-open" if index else "circle", "size": SIZE + WIDER * index, "line": {"width": 2}},
        hovertext=[_hover(case) for case in cases], **common,
    )  # fmt: skip
    if place and not index:
        end = 0 if place == "top right" else -1
        text = f"{first.stage.rpartition('/')[2]} {line.label}: {_number(cases[end].observed[name])} {_stem(first)}"
        figure.add_scatter(
            name="values", mode="text", hoverinfo="skip", x=[x[end]], y=[cases[end].observed[name]], cliponaxis=False,
            text=[panels.plain(text)], textposition=place, **common,
        )  # fmt: skip


def _draw_paper(figure: go.Figure, gain: float, panel: str, across: list[int]) -> None:
    """A quoted number, dashed, with its text at the right end."""
    figure.add_scatter(
        name="paper", mode="lines+text", hoverinfo="skip", showlegend=False, xaxis=f"x{panel}", yaxis=f"y{panel}",
        x=across, y=[gain, gain], line={"dash": "longdash", "width": 1.5, "color": panels.GREY},
        text=["", f"paper: about {gain:g}"], textposition="top left", cliponaxis=False,
    )  # fmt: skip


def _lay_out(iterations: list[int]) -> go.Figure:
    left, right = math.log10(iterations[0]) - 0.05, math.log10(max(iterations[-1], iterations[0] + 1)) + 0.05
    still = {"fixedrange": True, "zeroline": False, "type": "log", "automargin": True}
    along = {**still, "range": (left, right), "tickvals": iterations}
    titled = {**along, "title": {"text": "iterations of Sinkhorn (t_max)"}}
    powers = {**still, "exponentformat": "power", "dtick": 1}
    return bare(
        height=960, margin={"l": 8, "r": 8, "t": 24, "b": 8},
        xaxis={**along, "anchor": "y"},
        xaxis2={**along, "anchor": "y2"},
        xaxis3={**titled, "anchor": "y3"},
        yaxis={**powers, "domain": (0.69, 1), "title": {"text": "backward gain"}},
        yaxis2={**still, "domain": (0.37, 0.63), "anchor": "x2", "title": {"text": "of mHC alone"},
                "tickvals": [1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4]},
        yaxis3={**powers, "domain": (0, 0.31), "anchor": "x3", "title": {"text": "column error"}},
    )  # fmt: skip


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _hover(case: Any) -> str:
    """Everything observed, on what, by whom; and on how many tokens, where that is fewer than the shape says."""
    fewer = [said for said in case.warnings.split(" | ") if said.startswith("checked at")]
    numbers = [f"{name.replace('_', ' ')} {value:.6g}" for name, value in case.observed.items()]
    return panels.hover(
        _name(case), f"{case.shape} {case.dtype}", *numbers, f"mean over tokens; {case.execution}", *fewer
    )


def _name(case: Any) -> str:
    return panels.clip(case.implementation, 80)


def _stem(case: Any) -> str:
    return panels.clip(case.implementation.rpartition("/")[2], 30)
