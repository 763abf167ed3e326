"""What each implementation keeps for backward, per token and site, beside the paper's table 3.

The dot is what the allocator holds between forward and backward for backward's sake alone; inputs and parameters are
not counted. The upright line is table 3 of arXiv 2512.24880, which lists F's outputs and the first streams of every
recompute block; it is there for stacks of sites in blocks. What a number says beyond it is coefficients, or more.
"""

from __future__ import annotations

from typing import Any

import pandas
import plotly.graph_objects as go

from perflab.present import panels, units

ORDER = 3


def memory(frame: pandas.DataFrame, about: dict[str, Any]) -> go.Figure | None:
    """One mark per case of a pass that has a backward; None where the run has no such pass."""
    frame = frame[frame["pass"].isin(["backward", "forward_backward"])]
    if frame.empty:
        return None
    chart = panels.Panels(frame, "bytes kept per token and site")
    for stage in dict.fromkeys(frame["stage"]):
        chart.axis(stage).update(rangemode="tozero", tickformat="~s", ticksuffix="B", nticks=5)
    for group in chart.groups:
        _draw(chart, group)
    return chart.finish()


def _draw(chart: panels.Panels, group: panels.Group) -> None:
    measured = [case for case in group.cases if pandas.notna(case.saved_bytes)]
    listed = [case for case in measured if pandas.notna(case.table3_bytes)]
    chart.add_marks(
        group, name="table 3", mode="markers", hoverinfo="text",
        x=[case.table3_bytes / _shares(case) for case in listed],
        y=[chart.row(case) for case in listed],
        hovertext=[panels.hover(f"table 3: {units.size(case.table3_bytes)} in all") for case in listed],
        marker={"symbol": "line-ns-open", "size": 20, "opacity": 1, "line": {"width": 2}, "color": panels.GREY},
    )  # fmt: skip
    chart.add_marks(
        group, _range(measured), name="kept", mode="markers", hoverinfo="text",
        x=[case.saved_bytes / _shares(case) for case in measured],
        y=[chart.row(case) for case in measured],
        hovertext=[_hover(group, case) for case in measured],
        marker={"size": 12, "opacity": 1, "color": [panels.colour(case) for case in measured]},
    )  # fmt: skip
    chart.add_values(group, [(case, _value(case)) for case in measured])
    chart.add_absent(group, [(case, _why(case)) for case in group.cases if pandas.isna(case.saved_bytes)])


def _range(measured: list[Any]) -> tuple[float, float]:
    """From zero: what is kept may be nothing."""
    return 0.0, 1.08 * max((case.saved_bytes / _shares(case) for case in measured), default=0.0) or 1.0


def _shares(case: Any) -> float:
    """Tokens times sites; a stage that has no L is part of one site."""
    return max(case.sizes["T"] * case.sizes.get("L", 1), 1)


def _value(case: Any) -> str:
    kept = units.size(case.saved_bytes / _shares(case))
    return f"{kept}, Table 3 {case.beyond_table3:+.1f} B" if pandas.notna(case.beyond_table3) else kept


def _hover(group: panels.Group, case: Any) -> str:
    lines = [f"{units.size(case.saved_bytes)} kept in all, by the allocator's count"]
    if pandas.notna(case.table3_bytes):
        lines += [f"table 3: {units.size(case.table3_bytes)}", f"coefficients: {units.size(case.coefficient_bytes)}"]
    return panels.hover(case.implementation, group.title, *lines)


def _why(case: Any) -> str:
    """Why a case has no number."""
    told = next((text for text in case.warnings.split(" | ") if text.startswith("memory not measured")), None)
    return panels.unmeasured(case) or told or "memory not measured"
