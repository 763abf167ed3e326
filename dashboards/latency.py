"""Latency of one call: the median with its 95% interval, and every sample behind it.

The dot is the median and the bar its interval; thin ticks are the samples. A hollow dot, written with [cache], had a
working set that the last-level cache may hold: it says nothing of memory bandwidth.
"""

from __future__ import annotations

import math
from typing import Any

import pandas
import plotly.graph_objects as go

from perflab.present import panels, units

ORDER = 2
#: A stage whose medians differ by more than this within a group is drawn on a logarithmic axis.
LINEAR_UP_TO = 8


def latency(frame: pandas.DataFrame, about: dict[str, Any]) -> go.Figure:
    """Only cases that ran natively have a latency; the others say in their row why they have none."""
    chart = panels.Panels(frame, "time of one call")
    spread = dict.fromkeys(frame["stage"], 1.0)
    for group in chart.groups:
        medians = [case.latency_s for case in group.cases if case.samples_s]
        spread[group.stage] = max(spread[group.stage], max(medians, default=1) / min(medians, default=1))
    timed = {group.stage for group in chart.groups if any(case.samples_s for case in group.cases)}
    logarithmic = {stage for stage, factor in spread.items() if factor > LINEAR_UP_TO}
    for stage in spread:
        axis = chart.axis(stage)
        axis.update(tickformat="~s", ticksuffix="s", nticks=5, showticklabels=stage in timed)
        if stage in logarithmic:
            ticks = [digit * 10.0**power for power in range(-9, 4) for digit in (1, 2, 5)]
            axis.update(type="log", tickvals=ticks if spread[stage] < 50 else ticks[::3])
    for group in chart.groups:
        _draw(chart, group, group.stage in logarithmic)
    return chart.finish()


def _draw(chart: panels.Panels, group: panels.Group, logarithmic: bool) -> None:
    timed = [case for case in group.cases if case.samples_s]
    colours = {case.case_id: panels.colour(case) for case in timed}
    chart.add_marks(
        group, name="samples", mode="markers", hoverinfo="skip",
        x=[sample for case in timed for sample in case.samples_s],
        y=[chart.row(case) for case in timed for _ in case.samples_s],
        marker={
            "symbol": "line-ns-open", "size": 14, "opacity": 0.45, "line": {"width": 1},
            "color": [colours[case.case_id] for case in timed for _ in case.samples_s],
        },
    )  # fmt: skip
    chart.add_marks(
        group, _range(timed, logarithmic), name="median", mode="markers", hoverinfo="text",
        x=[case.latency_s for case in timed],
        y=[chart.row(case) for case in timed],
        hovertext=[_hover(group, case) for case in timed],
        error_x={
            "type": "data", "symmetric": False, "color": panels.GREY, "thickness": 1.5, "width": 4,
            "array": [case.latency_high_s - case.latency_s for case in timed],
            "arrayminus": [case.latency_s - case.latency_low_s for case in timed],
        },
        # Hollow: the cache may hold the working set.
        marker={
            "size": 9, "opacity": 1, "line": {"width": 2}, "color": [colours[case.case_id] for case in timed],
            "symbol": ["circle-open" if case.in_cache == 1 else "circle" for case in timed],
        },
    )  # fmt: skip
    chart.add_values(group, [(case, _value(case)) for case in timed])
    chart.add_absent(group, [(case, _why(case)) for case in group.cases if not case.samples_s])


def _range(timed: list[Any], logarithmic: bool) -> tuple[float, float] | None:
    samples = [sample for case in timed for sample in case.samples_s if sample > 0]
    if not samples:
        return None
    if logarithmic:
        return math.log10(min(samples) / 1.4), math.log10(max(samples) * 1.4)
    return 0.0, max(samples) * 1.06


def _value(case: Any) -> str:
    half = (case.latency_high_s - case.latency_low_s) / 2 / case.latency_s
    spread = f"{half:.1%}" if half < 0.095 else f"{half:.0%}"
    return f"{units.seconds(case.latency_s)} ±{spread}" + (" [cache]" if case.in_cache == 1 else "")


def _hover(group: panels.Group, case: Any) -> str:
    return panels.hover(
        case.implementation,
        group.title,
        f"median {units.seconds(case.latency_s)}",
        f"95% interval {units.seconds(case.latency_low_s)} to {units.seconds(case.latency_high_s)}",
        f"measured: {case.samples:.0f} samples, {case.timer}, caches {'flushed' if case.cold else 'warm'}",
        *(["the last-level cache may hold the working set"] if case.in_cache == 1 else []),
    )


def _why(case: Any) -> str:
    """Why a case has no latency."""
    return panels.unmeasured(case) or f"not timed: {case.execution} only"
