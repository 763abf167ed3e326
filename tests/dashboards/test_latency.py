"""The latency chart against the samples of the records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made_records as made
import plotly.graph_objects as go
import pytest

from perflab.analyse import derive
from perflab.analyse.stats import median, median_interval
from perflab.present import pages
from perflab.present.formats import frame
from perflab.record import Record

DASHBOARDS = Path(__file__).resolve().parents[2] / "dashboards"


def draw(records: list[Record]) -> go.Figure:
    """The chart of made records."""
    derived = derive.derive(records, made.about(), derive.metrics(DASHBOARDS))
    chart = next(chart for chart in pages.charts(DASHBOARDS) if chart.name == "latency")
    return chart.function(frame(records, derived), made.about())


def traces(figure: go.Figure, name: str) -> list[Any]:
    return [trace for trace in figure.data if trace.name == name]


def test_medians_intervals_and_samples_are_those_of_the_records() -> None:
    records = [record for record in made.many(shapes=1) if record.stage == "mhc/pre"]
    timed = [record.latency.samples_s for record in records if record.latency]
    figure = draw(records)
    (medians,), (samples,) = traces(figure, "median"), traces(figure, "samples")
    assert list(medians.x) == [median(taken) for taken in timed]
    lows = [x - less for x, less in zip(medians.x, medians.error_x.arrayminus, strict=True)]
    highs = [x + more for x, more in zip(medians.x, medians.error_x.array, strict=True)]
    assert list(zip(lows, highs, strict=True)) == [pytest.approx(median_interval(taken)) for taken in timed]
    assert list(samples.x) == [sample for taken in timed for sample in taken]


def test_a_case_without_latency_says_why() -> None:
    figure = draw(made.every_kind())
    (absent,), (medians,) = traces(figure, "absent"), traces(figure, "median")
    assert len(absent.text) + len(medians.x) == len(made.every_kind())
    assert absent.text[0] == "<i>not timed: interpreted only</i>"
    assert "not timed: interpreted only: mhc/pre/triton_row" in figure.layout.meta["notes"]


def test_what_the_cache_may_hold_is_hollow_and_marked() -> None:
    large = {"T": 65536, "n": 4, "C": 2560}
    figure = draw([
        made.record("a/eager"),
        made.record("b/eager", large),
        made.record("c/eager", latency=made.latency([1e-3] * 6, cold=True)),
    ])  # fmt: skip
    assert [trace.marker.symbol[0] for trace in traces(figure, "median")] == ["circle-open", "circle", "circle"]
    assert [trace.text[0] for trace in traces(figure, "values")] == ["1 ms ±15% [cache]", "1 ms ±15%", "1 ms ±0.0%"]
    hovers = [trace.hovertext[0].replace("<br>", " ") for trace in traces(figure, "median")]
    assert "caches warm" in hovers[0] and "caches flushed" in hovers[2]


def test_a_wide_spread_is_drawn_on_a_logarithmic_axis() -> None:
    fast, slow = made.latency([1e-5] * 7), made.latency([1e-3] * 7)
    near = draw([made.record("s/eager"), made.record("s/compiled")])
    wide = draw([made.record("s/eager", latency=slow), made.record("s/compiled", latency=fast)])
    assert near.layout.xaxis.type is None and near.layout.xaxis.range[0] == 0
    assert wide.layout.xaxis.type == "log"
    low, high = (10**edge for edge in wide.layout.xaxis.range)
    assert low < 1e-5 < 1e-3 < high
