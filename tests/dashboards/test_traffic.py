"""The traffic chart against the numbers of the records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made_records as made
import plotly.graph_objects as go
import pytest

from perflab.analyse import derive
from perflab.present import pages, panels
from perflab.present.formats import frame
from perflab.record import Record

DASHBOARDS = Path(__file__).resolve().parents[2] / "dashboards"


def draw(records: list[Record]) -> go.Figure:
    """The chart of made records."""
    derived = derive.derive(records, made.about(), derive.metrics(DASHBOARDS))
    chart = next(chart for chart in pages.charts(DASHBOARDS) if chart.name == "traffic")
    return chart.function(frame(records, derived), made.about())


def traces(figure: go.Figure, name: str) -> list[Any]:
    return [trace for trace in figure.data if trace.name == name]


def test_every_source_is_a_mark_and_the_most_trusted_is_filled() -> None:
    (marks,) = traces(draw(made.every_kind()), "traffic")
    drawn = list(zip(marks.x, marks.marker.symbol, marks.marker.color, strict=True))
    assert drawn == [
        (2.0, "circle", panels.COLOURS["eager"]),
        (1.0, "square-open", panels.COLOURS["compiled"]),
        (1.25, "triangle-up", panels.COLOURS["compiled"]),
        (pytest.approx(1.1, rel=1e-6), "diamond", panels.COLOURS["triton"]),
        (2.0, "circle", panels.COLOURS["triton"]),
    ]
    assert "read 26.2 MB (compulsory 21 MB)" in marks.hovertext[2]
    assert "wrote 6.55 MB (compulsory 5.24 MB)" in marks.hovertext[2]
    assert "source: counter" in marks.hovertext[2]


def test_numbers_carry_their_source_and_the_rest_its_reason() -> None:
    figure = draw(made.every_kind())
    (values,), (absent,) = traces(figure, "values"), traces(figure, "absent")
    assert list(values.text) == ["2.00× dispatch", "1.25× counter", "1.10× interpreted", "2.00× dispatch"]
    assert len(values.text) + len(absent.text) == len(made.every_kind()), "each case is in the chart"
    assert absent.text[0] == "<i>bytes not counted: no schedule; none at all</i>"
    assert absent.text[-1] == "<i>failed: CUDA out of memory</i>"
    assert figure.layout.meta["notes"][-1].startswith("failed: CUDA out of memory [out_of_memory]: mhc/pre/</script>")


def test_marks_and_texts_of_a_case_share_its_row() -> None:
    figure = draw(made.every_kind())
    (marks,), (values,), (names,) = (traces(figure, name) for name in ("traffic", "values", "names"))
    assert [round(y) for y in marks.y] == [0, 1, 1, 3, 7]
    assert [round(y) for y in values.y] == [0, 1, 3, 7]
    assert names.text[3] == "<b>triton_row</b>"


def test_names_are_no_markup() -> None:
    (names,) = traces(draw(made.every_kind()), "names")
    assert names.text[6].startswith("<b>&lt;/script&gt;&lt;script&gt;")
    assert names.text[7] == "<b>triton_" + "x" * 16 + "…</b>"
    assert names.hovertext[7].replace("<br>", "") == "mhc/pre/" + made.LONG


def test_one_group_is_shown_at_a_time_and_all_are_there() -> None:
    records = made.many(shapes=6)
    figure = draw(records)
    marks = traces(figure, "traffic")
    assert sum(len(trace.x) for trace in marks) == sum(len(record.traffic) for record in records)
    shown = [trace.meta for trace in marks if trace.visible]
    assert [meta["stage"] for meta in shown] == list(made.STAGES)
    assert {meta["group"]["T"] for meta in shown} == {"65536"}


def test_nothing_moved_and_nothing_compulsory_are_told_not_drawn() -> None:
    nothing = made.Bytes(read_bytes=0, write_bytes=0)
    figure = draw([
        made.record("s/eager", traffic=[made.traffic("dispatch", nothing, 1)]),
        made.record("s/compiled", compulsory=nothing),
    ])  # fmt: skip
    (values,), (absent,), (marks,) = (traces(figure, name) for name in ("values", "absent", "traffic"))
    assert list(values.text) == ["0.00× dispatch"]
    assert list(absent.text) == ["<i>no compulsory bytes to compare with</i>"]
    assert not marks.x


def test_all_panels_share_one_axis_that_holds_every_mark() -> None:
    figure = draw(made.many(shapes=2))
    ranges = {tuple(figure.layout[f"xaxis{number}"].range) for number in range(1, 7)}
    ((low, high),) = ranges
    assert all(10**low < x < 10**high for trace in traces(figure, "traffic") for x in trace.x)
    assert 10**low < 1 < 10**high
