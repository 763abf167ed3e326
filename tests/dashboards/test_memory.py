"""The memory chart against what the records keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made_records as made
import plotly.graph_objects as go
import pytest

from perflab.analyse import derive
from perflab.present import pages, panels
from perflab.present.formats import frame
from perflab.record import Memory, Reason, Record

DASHBOARDS = Path(__file__).resolve().parents[2] / "dashboards"
SIZES = {"T": 10, "n": 4, "C": 100, "L": 12, "L_r": 5}


def kept(name: str, sizes: dict[str, int], saved: int | None, **fields: Any) -> Record:
    """A made training step that keeps `saved` bytes."""
    memory = Memory(saved_bytes=saved, peak_bytes=10**6, source="allocator")
    return made.record(name, sizes, **{"pass": "forward_backward", "memory": memory} | fields)


def draw(records: list[Record]) -> go.Figure | None:
    """The chart of made records."""
    derived = derive.derive(records, made.about(), derive.metrics(DASHBOARDS))
    chart = next(chart for chart in pages.charts(DASHBOARDS) if chart.name == "memory")
    return chart.function(frame(records, derived), made.about())


def traces(figure: go.Figure | None, name: str) -> list[Any]:
    assert figure is not None
    return [trace for trace in figure.data if trace.name == name]


def test_bytes_are_shared_among_tokens_and_sites() -> None:
    figure = draw([
        kept("mhc/stack/eager", SIZES, 51_520),
        kept("mhc/stack/triton_rebuild", SIZES, 40_000),
        kept("mhc/pre/eager", {"T": 10, "n": 4, "C": 100}, 8_000),
    ])  # fmt: skip
    stack, pre = traces(figure, "kept")
    assert list(stack.x) == [pytest.approx(51_520 / 120), pytest.approx(40_000 / 120)]
    assert list(stack.marker.color) == [panels.COLOURS["eager"], panels.COLOURS["triton"]]
    assert list(pre.x) == [800.0]
    listed, none = traces(figure, "table 3")
    assert list(listed.x) == [pytest.approx(40_000 / 120)] * 2
    assert not none.x, "table 3 is about stacks"


def test_numbers_say_what_is_kept_beyond_table_3() -> None:
    figure = draw([kept("mhc/stack/eager", SIZES, 51_520), kept("mhc/stack/eager_checkpoint", SIZES, 39_880)])
    (values,) = traces(figure, "values")
    assert list(values.text) == ["429 B, Table 3 +96.0 B", "332 B, Table 3 -1.0 B"]
    (marks,) = traces(figure, "kept")
    assert "coefficients: 11.5 kB" in marks.hovertext[0]
    assert "51.5 kB kept in all" in marks.hovertext[0]


def test_what_keeps_nothing_is_a_mark_at_zero_and_what_was_not_measured_says_why() -> None:
    reason = Reason(code="missing_toolkit", text="needs the package tilelang, which is not installed")
    figure = draw([
        kept("mhc/pre/eager", made.SMALL, 0),
        kept("mhc/pre/compiled", made.SMALL, 0, memory=None, warnings=["memory not measured: no allocator"]),
        kept("mhc/pre/tilelang_a", made.SMALL, 0, memory=None, status="skipped", execution=None, reason=reason),
    ])  # fmt: skip
    (marks,), (absent,), (values,) = (traces(figure, name) for name in ("kept", "absent", "values"))
    assert list(marks.x) == [0.0] and list(values.text) == ["0 B"]
    assert absent.text[0] == "<i>memory not measured: no allocator</i>"
    assert absent.text[1].startswith("<i>skipped: needs the package tilelang")
    assert figure is not None and len(figure.layout.meta["notes"]) == 2


def test_the_axis_holds_every_mark() -> None:
    figure = draw([kept("mhc/pre/eager", made.SMALL, 5_000_000), kept("mhc/pre/compiled", made.SMALL, 1_000)])
    assert figure is not None
    low, high = figure.layout.xaxis.range
    assert low == 0 and high > 5_000_000 / made.SMALL["T"]


def test_forward_passes_keep_nothing_and_are_left_out() -> None:
    assert draw(made.every_kind()) is None
    figure = draw([made.record("mhc/post_res/eager"), kept("mhc/pre/eager", made.SMALL, 1)])
    assert [trace.text[0] for trace in traces(figure, "names")] == ["<b>eager</b>"]
