"""Measured: where the overhead goes, by part of the step.

A profile gives every operation of a step to the part that it serves, in forward, backward, rebuilding and the update; a
bar is what the part takes beyond the baseline's, and to the left of zero what it takes less. Hatched is what launching
costs about: the part's further operations, each at the price of one on a single element; of eager code on a CPU only,
where operations are seen one by one. The rest of the measured overhead, which is in no named part, has its own row. The
profile tells shares, of steps taken between the timed ones, and those tell how long a step is. What the profiler costs
is taken off in proportion to the number of its events; the notes say how far profiled steps were from plain ones then.
"""

from __future__ import annotations

from typing import Any

import pandas
import plotly.graph_objects as go

from perflab.analyse import parts
from perflab.analyse.steps import pairs
from perflab.present import panels, units
from perflab.present.figure import bare
from perflab.record import Record

PAGE, ORDER = "Overhead", 2
PHASES = ("forward", "backward", "rebuild", "update")
REST = "not explained"
#: What a step is made of in the order of its course, with a colour each; others are grey.
COLOURS = {
    "project": "#0072b2", "activate": "#56b4e9", "sinkhorn": "#cc79a7", "pre": "#009e73", "read": "#1f3b73",
    "write": "#d55e00", "norm": "#f0e442", "expand": "#e69f00", "collapse": "#b8860b", "optimiser": "#6a3d9a",
    "rebuild": "#8c564b", "attention": "#999999", "ffn": "#c9c9c9", "device waits": "#333333", "embedding": "#a6cee3",
    "head": "#b2df8a", "balance": "#fb9a99", "small parts": "#e4d5c3",
}  # fmt: skip
_ROW, _FRAME = 26, 110  # pixels
#: Parts below this share of a design's overhead are summed up as "small parts".
SMALL = 0.01


def overhead_attribution(frame: pandas.DataFrame, about: dict[str, Any]) -> go.Figure | None:
    """A row per design and phase; None where no step was told apart."""
    compared = [pair for pair in pairs(list(frame["record"])) if parts.differences(*pair)]
    if not compared:
        return None
    launch_s = (about.get("compute") or {}).get("launch_s")
    figure, rows, notes = bare(), [], []
    for record, baseline in compared:
        name = _name(record)
        whole, found = parts.measured(record, baseline), parts.differences(record, baseline)
        if whole is None:
            continue
        named = [one for one in found if one.name not in parts.UNNAMED]
        rest = whole - sum(one.seconds for one in named)
        for phase in PHASES:
            rows.append(f"{name}: {phase}")
            for one in _gathered([one for one in named if one.phase == phase], abs(whole)):
                _add(figure, rows[-1], one, launch_s if _launches_one_by_one(record) else None)
        rows.append(f"{name}: {REST}")
        _add(figure, rows[-1], parts.Difference(REST, "", rest, 0), None)
        notes.append(
            f"{name}: {units.seconds(whole)} a step more than {record.baseline}, of which the parts explain "
            f"{1 - rest / whole:.0%}{_about_profiles(record)}"
            if whole > 0
            else f"{name}: no slower than {record.baseline}"
        )
    figure.update_layout(
        height=_FRAME + _ROW * len(rows), barmode="relative", bargap=0.25, margin={"l": 8, "r": 8, "t": 8, "b": 60},
        xaxis={"title": {"text": "ms a step beyond the baseline"}, "zeroline": True, "fixedrange": True},
        yaxis={"categoryorder": "array", "categoryarray": rows[::-1], "automargin": True, "fixedrange": True},
        meta={"notes": [*notes, _about_launches(launch_s)]},
    )  # fmt: skip
    return figure


def _launches_one_by_one(record: Record) -> bool:
    return record.toolkit == "eager" and record.device == "cpu"


def _name(record: Record) -> str:
    return " ".join([record.implementation.removeprefix(record.stage + "/"), record.label.partition(" ")[2]]).strip()


def _gathered(found: list[parts.Difference], whole: float) -> list[parts.Difference]:
    """The large ones, and the others as one."""
    large = [one for one in found if abs(one.seconds) >= SMALL * whole]
    small = [one for one in found if abs(one.seconds) < SMALL * whole]
    if small:
        seconds, launches = sum(one.seconds for one in small), sum(one.launches for one in small)
        large.append(parts.Difference("small parts", small[0].phase, seconds, launches))
    return large


def _add(figure: go.Figure, row: str, one: parts.Difference, launch_s: float | None) -> None:
    """The part's bar: what launching costs hatched, if that is known, and what remains."""
    launching = min(max(one.launches * launch_s, 0.0), max(one.seconds, 0.0)) if launch_s else 0.0
    shown = {trace.name for trace in figure.data}
    told = panels.hover(
        f"{row}: {one.name}",
        f"{1e3 * one.seconds:+.3g} ms, its share of profiled steps",
        *([f"{one.launches:+d} operations, about {1e3 * launching:.3g} ms of launching"] if launch_s else []),
    )
    # The legend shows the colour of a part as it is without launching.
    for seconds, pattern in ((one.seconds - launching, ""), (launching, "/")):
        if not seconds:
            continue
        figure.add_trace(
            go.Bar(
                name=panels.plain(one.name), x=[1e3 * seconds], y=[row], orientation="h",
                hoverinfo="text", hovertext=told, legendgroup=one.name, showlegend=one.name not in shown,
                marker={"color": COLOURS.get(one.name, panels.GREY), "pattern": {"shape": pattern}},
            )
        )  # fmt: skip
        shown.add(one.name)


def _about_profiles(record: Record) -> str:
    step = record.step
    if step is None or step.profiler_s is None:
        return ""
    off = (
        ""
        if step.profile_error is None
        else f", after which profiled steps were {step.profile_error:+.0%} off plain ones"
    )
    return f"; {1e6 * step.profiler_s:.1f} us were taken off for every event of the profile{off}"


def _about_launches(launch_s: float | None) -> str:
    if launch_s is None:
        return "launching is not told apart: the run did not measure what it costs"
    return f"launching an operation on one element took {units.seconds(launch_s)}, measured in this run"
