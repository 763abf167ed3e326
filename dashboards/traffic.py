"""Memory traffic as a multiple of the compulsory bytes: 1 is the fewest that the stage's contract allows.

The number at the end of a row is that of its most trusted source, which is the filled mark; hollow marks are its other
sources. Rows stand in the order of the records, not in that of merit.
"""

from __future__ import annotations

import math
from typing import Any

import pandas
import plotly.graph_objects as go

from perflab.present import panels, units

ORDER = 1


def traffic(frame: pandas.DataFrame, about: dict[str, Any]) -> go.Figure:
    """One mark per case and source; the most trusted source is filled and written out, the others are hollow."""
    chart = panels.Panels(frame, "times the compulsory bytes")
    counted = {case.case_id: _counts(case) for group in chart.groups for case in group.cases}
    highest = max((times for counts in counted.values() for times, *_ in counts), default=1)
    lowest = min((times for counts in counted.values() for times, *_ in counts if times > 0), default=1)
    # One range for all stages, so that multiples compare across them.
    limits = (math.log10(min(lowest / 1.15, 0.8)), math.log10(max(highest * 1.15, 2.4)))
    for stage in dict.fromkeys(frame["stage"]):
        powers = [2.0**power for power in range(math.floor(math.log2(10 ** limits[0])), 40)]
        # Every second or third power where all would run into each other on a phone.
        step = 1 + int((limits[1] - limits[0]) / math.log10(2) / 8)
        ticks = [power for power in powers if round(math.log2(power)) % step == 0]
        chart.axis(stage).update(type="log", range=limits, tickvals=ticks, ticktext=[f"{tick:g}×" for tick in ticks])
        chart.add_line(stage, 1, "the compulsory bytes")
    for group in chart.groups:
        _draw(chart, group, counted)
    return chart.finish()


def _counts(case: Any) -> list[tuple[float, str, float, float]]:
    """(multiple, source, bytes read, bytes written) for each source of a case, the most trusted last."""
    fewest = _total(case, "compulsory")
    if not fewest:
        return []
    return [
        (_total(case, source) / fewest, source, getattr(case, f"{source}_read_bytes"),
         getattr(case, f"{source}_write_bytes"))
        for source in panels.SOURCES
        if pandas.notna(getattr(case, f"{source}_read_bytes"))
    ]  # fmt: skip


def _total(case: Any, part: str) -> float:
    read, write = getattr(case, f"{part}_read_bytes"), getattr(case, f"{part}_write_bytes")
    return float(read + write) if pandas.notna(read) else 0.0


def _draw(chart: panels.Panels, group: panels.Group, counted: dict[str, list[tuple[float, str, float, float]]]) -> None:
    drawn = [(case, counted[case.case_id]) for case in group.cases if counted[case.case_id]]
    stems = [(case, counts[-1][0]) for case, counts in drawn if counts[-1][0] > 0]
    chart.add_marks(
        group, name="distance from the compulsory bytes", mode="lines", hoverinfo="skip",
        line={"width": 2, "color": panels.GREY},
        x=[x for _, times in stems for x in (1, times, None)],
        y=[y for case, _ in stems for y in (chart.row(case), chart.row(case), None)],
    )  # fmt: skip
    # A logarithmic axis has no zero: a case that moved nothing has its number, and no mark.
    points = [(case, counts, one) for case, counts in drawn for one in counts if one[0] > 0]
    colours = [panels.colour(case) for case, _, _ in points]
    chart.add_marks(
        group, name="traffic", mode="markers", hoverinfo="text",
        x=[one[0] for _, _, one in points],
        y=[chart.row(case) for case, _, _ in points],
        hovertext=[_hover(group, case, one) for case, _, one in points],
        marker={
            "size": 12, "opacity": 1, "line": {"width": 2, "color": colours}, "color": colours,
            "symbol": [panels.SOURCES[one[1]][0] + ("" if one is counts[-1] else "-open") for _, counts, one in points],
        },
    )  # fmt: skip
    chart.add_values(group, [(case, f"{units.ratio(counts[-1][0])}× {counts[-1][1]}") for case, counts in drawn])
    chart.add_absent(group, [(case, _why(case)) for case in group.cases if not counted[case.case_id]])


def _hover(group: panels.Group, case: Any, count: tuple[float, str, float, float]) -> str:
    times, source, read, write = count
    return panels.hover(
        case.implementation,
        group.title,
        f"{units.ratio(times)}× the compulsory {units.size(_total(case, 'compulsory'))}",
        f"read {units.size(read)} (compulsory {units.size(case.compulsory_read_bytes)})",
        f"wrote {units.size(write)} (compulsory {units.size(case.compulsory_write_bytes)})",
        f"source: {source}",
    )


def _why(case: Any) -> str:
    """Why a case has no mark: not passed, nothing to compare with, or what the collector said."""
    if not _total(case, "compulsory") and case.status == "passed":
        return "no compulsory bytes to compare with"
    told = next((text for text in case.warnings.split(" | ") if text.startswith("bytes not counted")), None)
    return panels.unmeasured(case) or told or "bytes not counted"
