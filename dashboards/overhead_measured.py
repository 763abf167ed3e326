"""Measured: how much longer a step takes than the plain residual's, with the 95% interval.

Every design had a turn in every round; a dot is the median over rounds of its time over the baseline's, less one, and
the bar its interval. A hollow dot is undecided, as its interval is wider than was asked for, or was sampled while other
programs used the processors: its words say which. A design that this machine
cannot run as it is says so in its row.
"""

from __future__ import annotations

from typing import Any

import pandas
import plotly.graph_objects as go

from perflab.present import panels, units

PAGE, ORDER = "Overhead", 1


def overhead_measured(frame: pandas.DataFrame, about: dict[str, Any]) -> go.Figure | None:
    """A panel per group of steps; None where the run has none."""
    frame = frame[frame["pass"] == "step"]
    if frame.empty:
        return None
    chart = panels.Panels(frame, "overhead over the baseline")
    for group in chart.groups:
        chart.axis(group.stage).update(ticksuffix="%", zeroline=True)
        known = [case for case in group.cases if pandas.notna(case.overhead)]
        chart.add_marks(
            group, _range(known), name="overhead", mode="markers", hoverinfo="text",
            x=[100 * case.overhead for case in known],
            y=[chart.row(case) for case in known],
            error_x={
                "type": "data", "symmetric": False, "color": panels.GREY,
                "array": [100 * (case.overhead_high - case.overhead) for case in known],
                "arrayminus": [100 * (case.overhead - case.overhead_low) for case in known],
            },
            hovertext=[_hover(case, about) for case in known],
            marker={
                "size": 12, "opacity": 1, "color": [panels.colour(case) for case in known],
                "symbol": ["circle-open" if _doubt(case) else "circle" for case in known],
            },
        )  # fmt: skip
        chart.add_values(group, [(case, _value(case)) for case in group.cases if pandas.notna(case.latency_s)])
        chart.add_absent(group, [(case, _absent(case)) for case in group.cases if pandas.isna(case.overhead)])
    return chart.finish()


def _range(known: list[Any]) -> tuple[float, float] | None:
    if not known:
        return None
    low = min(0.0, *(100 * case.overhead_low for case in known))
    high = max(0.0, *(100 * case.overhead_high for case in known))
    margin = 0.08 * (high - low or 1)
    return low - margin, high + margin


def _doubt(case: Any) -> str:
    """What speaks against the number, in words before it ends; nothing for most."""
    told = {"undecided": " undecided", "busy machine": " busy machine"}
    return "".join(
        words for start, words in told.items() if any(text.startswith(start) for text in case.record.warnings)
    )


def _value(case: Any) -> str:
    step = units.seconds(case.latency_s)
    if pandas.isna(case.overhead):
        return step
    return f"{100 * case.overhead:+.1f}%{_doubt(case)}, {step}"


def _hover(case: Any, about: dict[str, Any]) -> str:
    rate = (about.get("compute") or {}).get("matmul") or {}
    lines = [
        case.implementation,
        f"{100 * case.overhead:+.1f}% [{100 * case.overhead_low:.1f}, {100 * case.overhead_high:.1f}], 95% over rounds",
        f"step {units.seconds(case.latency_s)}, {case.tokens_per_second:.3g} tokens/s",
    ]
    if pandas.notna(case.flops_utilisation):
        lines.append(
            f"{units.percent(case.flops_utilisation)} of the matrix product rate measured here "
            f"({rate[case.dtype] / 1e9:.3g} GFLOP/s)"
        )
    return panels.hover(*lines, f"measured, run {about.get('run_id', '?')}")


def _absent(case: Any) -> str:
    if reason := panels.unmeasured(case):
        return reason
    if case.record.implementation == f"{case.stage}/{case.record.baseline}":
        return "the baseline"
    return f"checked, not timed: {case.execution} here" if case.execution != "native" else "no overhead known"
