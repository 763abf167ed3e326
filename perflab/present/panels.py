"""The form that charts share: a panel per stage, a row per implementation, one group shown at a time.

Rows stand in the order of the records, so two charts of one run can be read across. A row has its name and its number
above the marks, which leaves the whole width to the axis on any screen. Traces of a group carry `meta` (stage, group,
range); the page's selectors show and hide them by it.
"""

from __future__ import annotations

import html
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas
import plotly.graph_objects as go

from perflab.present import units

GREY = "#7f7f7f"
#: Okabe and Ito's colours, those with enough contrast on white and on black.
COLOURS = {"eager": GREY, "compiled": "#d55e00", "triton": "#0072b2", "tilelang": "#009e73", "peer": "#cc79a7"}

#: The mark of each source of bytes, and how it comes by them; from the least to the most trusted.
SOURCES = {
    "dispatch": ("circle", "counted, every tensor operation's reads and writes"),
    "compiler": ("square", "counted, from the compiler's own schedule"),
    "interpreted": ("diamond", "counted, loads and stores of the interpreted kernel"),
    "counter": ("triangle-up", "measured, the GPU's hardware counters"),
}

_HEAD, _ROW, _FOOT = 40, 44, 50  # pixels: a panel's name, each of its rows, its axis
_TITLE, _ABOVE, _BELOW = -0.75, -0.2, 0.2  # where a group's title, a row's text and its marks stand, in rows
_HOVER_WIDTH, _NAME_WIDTH, _TEXT_WIDTH, _TITLE_WIDTH = 44, 24, 50, 36  # characters that fit a phone


@dataclass(frozen=True)
class Group:
    """The records of one stage, shape, dtype, pass and device; the page names the device, which is the run's.

    keys   what tells this group from the stage's others, as text: {"T": "1024", "dtype": "bf16", ...}
    cases  one named tuple of the frame's columns per record
    """

    stage: str
    keys: dict[str, str]
    cases: list[Any]
    title: str


class Panels:
    """A figure with one panel per stage of the frame; `add_*` draw into it."""

    def __init__(self, frame: pandas.DataFrame, axis: str) -> None:
        self.figure = go.Figure()
        self.groups = list(groups(frame))
        self._rows: dict[str, list[str]] = {}
        for stage, implementation in zip(frame["stage"], frame["implementation"], strict=True):
            rows = self._rows.setdefault(stage, [])
            if implementation not in rows:
                rows.append(implementation)
        self._stages = list(self._rows)
        self._shown = default_choice(self.groups)
        self._absent: dict[str, dict[str, int]] = {}
        self._traces: list[dict[str, Any]] = []
        self._lay_out(axis)
        for group in self.groups:
            self._write(group, [(_TITLE, clip(group.title, _TITLE_WIDTH), group.title)], "group")
            fewest = units.size(_compulsory(group.cases))
            self._write(group, [(_TITLE, f"fewest {fewest}", "compulsory bytes")] if fewest else [], "fewest")

    def row(self, case: Any) -> float:
        """Where the marks of a case stand on its panel's y axis."""
        return self._rows[case.stage].index(case.implementation) + _BELOW

    def axis(self, stage: str) -> go.layout.XAxis:
        """The stage's x axis, to set its type and ticks."""
        return self.figure.layout[f"xaxis{self._number(stage)}"]

    def add_line(self, stage: str, x: float, name: str) -> None:
        """Draw a dashed line across the panel at `x`, whatever group is shown."""
        number, bottom = self._number(stage), len(self._rows[stage]) - 0.5
        self._traces.append({
            "name": name, "mode": "lines", "line": {"dash": "dash", "width": 1.5, "color": GREY}, "hoverinfo": "skip",
            "x": [x, x], "y": [-0.5, bottom], "xaxis": f"x{number}", "yaxis": f"y{number}", "showlegend": False,
        })  # fmt: skip

    def add_marks(self, group: Group, axis_range: tuple[float, float] | None = None, **trace: Any) -> None:
        """Add a scatter trace that is shown with its group; the axis takes `axis_range` then."""
        number = self._number(group.stage)
        shown = matches(group, self.groups, self._shown)
        meta: dict[str, Any] = {"stage": group.stage, "group": group.keys}
        if axis_range:
            meta |= {"range": list(axis_range), "axis": f"xaxis{number}" if number > 1 else "xaxis"}
            if shown:
                self.axis(group.stage).range = axis_range
        self._traces.append(
            {"xaxis": f"x{number}", "yaxis": f"y{number}", "meta": meta, "visible": shown, "showlegend": False} | trace
        )

    def add_values(self, group: Group, values: list[tuple[Any, str]]) -> None:
        """Write a number with its source at the right end of its row."""
        self._write(group, [(self.row(case) - _BELOW + _ABOVE, text, text) for case, text in values], "values")

    def add_absent(self, group: Group, reasons: list[tuple[Any, str]]) -> None:
        """Write why a row has no mark into the row, and keep it for the notes under the chart."""
        texts = [(self.row(case), clip(why.rpartition(" [")[0] or why, _TEXT_WIDTH), why) for case, why in reasons]
        self._write(group, texts, "absent")
        for case, why in reasons:
            cases = self._absent.setdefault(why, {})
            cases[case.implementation] = cases.get(case.implementation, 0) + 1

    def finish(self) -> go.Figure:
        """The figure, with the notes that the page prints below it."""
        self.figure.add_traces(self._traces)
        absent = [
            f"{why}: " + ", ".join(f"{name} ({count} groups)" if count > 1 else name for name, count in cases.items())
            for why, cases in self._absent.items()
        ]
        self.figure.layout.meta = {"notes": absent}
        return self.figure

    def _write(self, group: Group, texts: list[tuple[float, str, str]], name: str) -> None:
        """Add (place on the y axis, text, text on hover); values stand at the right, everything else at the left."""
        if not texts:
            return
        right, italic = name in ("values", "fewest"), name == "absent"
        self._traces.append(
            _text(self._number(group.stage), "middle left" if right else "middle right")
            | {
                "name": name,
                "x": [int(right)] * len(texts),
                "y": [place for place, _, _ in texts],
                "text": [f"<i>{plain(text)}</i>" if italic else plain(text) for _, text, _ in texts],
                "hovertext": [hover(full) for _, _, full in texts],
                "meta": {"stage": group.stage, "group": group.keys},
                "visible": matches(group, self.groups, self._shown),
            }
        )

    def _number(self, stage: str) -> int:
        return self._stages.index(stage) + 1

    def _lay_out(self, axis: str) -> None:
        heights = [_HEAD + _ROW * (len(rows) + 0.5) + _FOOT for rows in self._rows.values()]
        total, top = sum(heights), 0.0
        self.figure.update_layout(
            height=total, margin={"l": 8, "r": 8, "t": 0, "b": 0}, template="none", hovermode="closest",
            paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", dragmode=False,
            font={"family": "system-ui, sans-serif", "size": 12},
            hoverlabel={"bgcolor": "#20242c", "bordercolor": "#20242c", "font": {"color": "#fff"}, "align": "left"},
        )  # fmt: skip
        for (stage, names), height in zip(self._rows.items(), heights, strict=True):
            upper, lower = 1 - (top + _HEAD) / total, 1 - (top + height - _FOOT) / total
            self._add_panel(stage, names, (lower, upper), axis)
            top += height

    def _add_panel(self, stage: str, names: list[str], domain: tuple[float, float], axis: str) -> None:
        number, count = self._number(stage), len(names)
        still = {"fixedrange": True, "zeroline": False}
        self.figure.update_layout({
            f"yaxis{number}": {
                **still, "domain": domain, "anchor": f"x{number}", "range": [count - 0.5, -1],
                "showticklabels": False, "tickvals": [edge - 0.5 for edge in range(count + 1)],
            },
            f"xaxis{number}": {**still, "anchor": f"y{number}", "title": {"text": axis, "standoff": 8}},
            # A second axis from 0 to 1 holds the texts: they keep their place whatever the numbers are.
            f"xaxis{number + 100}": {
                **still, "anchor": f"y{number}", "overlaying": f"x{number}", "range": [0, 1], "visible": False,
            },
        })  # fmt: skip
        self.figure.add_annotation(
            text=f"<b>{plain(clip(stage, 2 * _NAME_WIDTH))}</b>", font={"size": 15}, showarrow=False,
            xref="paper", x=0, xanchor="left", yref="paper", y=domain[1], yanchor="bottom", yshift=0,
        )  # fmt: skip
        short = [name.removeprefix(stage + "/") for name in names]
        self._traces.append(
            _text(number, "middle right")
            | {
                "name": "names",
                "x": [0] * count,
                "y": [index + _ABOVE for index in range(count)],
                "text": [f"<b>{plain(clip(name, _NAME_WIDTH))}</b>" for name in short],
                "hovertext": [hover(name) for name in names],
            }
        )


def groups(frame: pandas.DataFrame) -> Iterator[Group]:
    """The frame's groups in the order of the records."""
    members: dict[tuple[str, ...], list[Any]] = {}
    cases: Iterator[Any] = frame.rename(columns={"pass": "pass_"}).itertuples(index=False)
    for case in cases:
        members.setdefault((case.stage, case.label, case.shape, case.dtype, case.pass_, case.device), []).append(case)
    for (stage, label, shape, dtype, pass_, device), together in members.items():
        sizes = {"preset": label} if label else dict(part.split("=", 1) for part in shape.split())
        keys = sizes | {"dtype": dtype, "pass": pass_, "device": device}
        yield Group(stage, keys, together, f"{label or shape} {dtype} {pass_}")


def choices(parts: list[Group]) -> dict[str, list[str]]:
    """What the page offers to choose: the keys in which a stage's groups differ, with their values."""
    offered: dict[str, list[str]] = {}
    for group in parts:
        for key in group.keys:
            if len(_values(parts, group.stage, key)) > 1:
                offered.setdefault(key, [])
                if group.keys[key] not in offered[key]:
                    offered[key].append(group.keys[key])
    return {key: sorted(values, key=_numerically) for key, values in offered.items()}


#: What tells kinds of group apart, besides their sizes.
KIND = ("dtype", "pass", "device")


def default_choice(parts: list[Group]) -> dict[str, str]:
    """The largest group of the dtype, pass and device with most passed cases: likely outside every cache, and full."""
    kinds: Counter[tuple[str, ...]] = Counter()
    for group in parts:
        # Only stages with a choice to make have a say in it.
        if any(len(_values(parts, group.stage, key)) > 1 for key in KIND):
            kinds[_kind(group)] += sum(case.status == "passed" for case in group.cases)
    kind = kinds.most_common(1)[0][0] if kinds else _kind(parts[0])
    alike = [group for group in parts if _kind(group) == kind]
    differing = choices(parts)
    chosen: dict[str, str] = {}
    for group in sorted(alike, key=lambda group: _compulsory(group.cases) or 0, reverse=True):
        chosen = {key: value for key, value in group.keys.items() if key in differing} | chosen
    return {key: values[-1] for key, values in differing.items()} | chosen


def _kind(group: Group) -> tuple[str, ...]:
    return tuple(group.keys[key] for key in KIND)


def matches(group: Group, parts: list[Group], chosen: dict[str, str]) -> bool:
    """Whether a group is shown; a stage without a choice to make shows what it has."""
    return all(
        group.keys[key] == value
        for key, value in chosen.items()
        if key in group.keys and len(_values(parts, group.stage, key)) > 1
    )


def plain(text: str) -> str:
    """`text` with nothing in it that plotly takes for markup."""
    return html.escape(text, quote=False)


def colour(case: Any) -> str:
    """The colour of the case's toolkit, the same in every chart."""
    return COLOURS.get(case.toolkit, GREY)


def clip(text: str, width: int) -> str:
    """`text` on one line of at most `width` characters, its end marked when cut."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def hover(*lines: str) -> str:
    """Lines for a hover label, wrapped to what fits a phone."""
    wrapped = [part for line in lines for part in textwrap.wrap(line, _HOVER_WIDTH)]
    return "<br>".join(plain(part) for part in wrapped)


def unmeasured(case: Any) -> str | None:
    """Why a case has no numbers at all; None when it passed."""
    if case.status == "passed":
        return None
    code, _, text = case.reason.partition(": ")
    return f"{case.status}: {text} [{code}]"


def _text(number: int, position: str) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "text", "xaxis": f"x{number + 100}", "yaxis": f"y{number}", "textposition": position,
        "hoverinfo": "text", "cliponaxis": False, "showlegend": False,
    }  # fmt: skip


def _values(parts: list[Group], stage: str, key: str) -> set[str]:
    return {group.keys[key] for group in parts if group.stage == stage and key in group.keys}


def _compulsory(cases: list[Any]) -> float | None:
    known = [case for case in cases if pandas.notna(case.compulsory_read_bytes)]
    return max((case.compulsory_read_bytes + case.compulsory_write_bytes for case in known), default=None)


def _numerically(value: str) -> tuple[int, int, str]:
    return (0, int(value), "") if value.isdecimal() else (1, 0, value)
