"""Projected beside measured: the same model's step on the run's own machine.

The projection takes bandwidth, product rate and launch cost as this run measured them, bytes as counted, and the other
assumptions as they stand. It says nothing of caches or of what an operation costs besides launching, so on a small
model it falls short: how far is what this chart is for.
"""

from __future__ import annotations

from typing import Any

import pandas
import plotly.graph_objects as go

from perflab import machines
from perflab.analyse.steps import TimedStep, timed_steps
from perflab.present import panels, units

from . import _subject

PAGE, ORDER = "Overhead", 3
COLOURS = {"projected": "#56b4e9", "measured": "#0072b2"}
_ROW, _FRAME = 60, 110  # pixels


def overhead_compared(frame: pandas.DataFrame, about: dict[str, Any]) -> go.Figure | None:
    """A row for the plain step and for what each variant adds; None where the run timed none that is projected."""
    overhead = _subject.module("overhead")
    steps = frame[frame["pass"] == "step"] if overhead is not None else frame[:0]
    machine = None if steps.empty else machines.of_run(about)
    if overhead is None or machine is None:
        return None
    rows: list[tuple[str, float, float]] = []
    notes = []
    for preset in overhead.presets():
        projection = overhead.project(preset, machine)
        for one in overhead.held(projection, timed_steps(list(steps["record"]), preset)):
            plain = (f"{preset}: plain step", projection.baseline(), one.timed.baseline_s)
            rows += [*([plain] if plain not in rows else []),
                     (f"{preset}: {one.timed.implementation} adds", one.projected_s, one.timed.extra_s)]  # fmt: skip
            notes.append(
                f"{preset}, {one.timed.implementation}: {units.seconds(one.projected_s)} projected, "
                f"{units.seconds(one.timed.extra_s)} measured, {_off(one.error)}; overhead {one.at_measured:+.0%} "
                f"projected over the plain step as measured, {_measured(one.timed)}; "
                f"the plain step reached a utilisation of {one.utilisation:.2g}"
            )
    if not rows:
        return None
    figure = _subject.figure(_FRAME + _ROW * len(rows), notes, barmode="group", bargap=0.3)
    names = [name for name, _, _ in rows]
    for kind, column in (("projected", 1), ("measured", 2)):
        seconds = [row[column] for row in rows]
        figure.add_bar(
            orientation="h", y=names, x=[1e3 * one for one in seconds], name=kind, hoverinfo="text",
            marker={"color": COLOURS[kind]}, text=[units.seconds(one) for one in seconds], textposition="auto",
            hovertext=[panels.hover(f"{name}: {units.seconds(one)}, {kind}")
                       for name, one in zip(names, seconds, strict=True)],
        )  # fmt: skip
    figure.update_xaxes(title={"text": "ms"}, fixedrange=True)
    figure.update_yaxes(autorange="reversed", automargin=True, fixedrange=True)
    return figure


def _off(error: float | None) -> str:
    return "which may be nothing, so no error is told" if error is None else f"{error:+.0%}"


def _measured(timed: TimedStep) -> str:
    """Of rounds, with its interval, where there are enough; else of the medians."""
    if timed.overhead is None:
        return f"{timed.extra_s / timed.baseline_s:+.0%}, of medians without an interval, measured"
    return f"{timed.overhead.share:+.0%} [{100 * timed.overhead.low:.0f}, {100 * timed.overhead.high:.0f}] measured"
