"""The stability chart against the observed numbers of the records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made_records as made
import plotly.graph_objects as go

from perflab.analyse import derive
from perflab.present import pages, panels
from perflab.present.formats import frame
from perflab.record import Reason, Record

DASHBOARDS = Path(__file__).resolve().parents[2] / "dashboards"


def draw(records: list[Record]) -> go.Figure | None:
    """The chart of made records."""
    derived = derive.derive(records, made.about(), derive.metrics(DASHBOARDS))
    chart = next(chart for chart in pages.charts(DASHBOARDS) if chart.name == "stability")
    return chart.function(frame(records, derived), made.about())


def gain(stem: str, gain: float, error: float, stage: str = "gain", **sizes: int) -> Record:
    """A case of a stage of gains, with what it observed."""
    shape = {"T": 256, "n": 4, "L": 60, **sizes}
    seen = {"gain_forward": 1.5, "gain_backward": gain, "column_error": error}
    accuracy = made.accuracy(shape).model_copy(update={"observed": seen})
    return made.record(f"mhc/{stage}/{stem}", shape, accuracy=accuracy, dtype="fp32")


def all_kinds() -> list[Record]:
    return [
        gain("eager", 1.25, 0.5, t_max=20, s=8),
        gain("eager", 2.0, 1.5, t_max=1, s=8),
        gain("eager", 1.125, 0.75, t_max=1, s=1),
        gain("triton_lanes", 1.25, 0.5, t_max=20, s=8),
        gain("eager", 2222.0, 1.2, stage="gain_hc", s=8),
    ]


def lines(figure: go.Figure, name: str, panel: str) -> list[Any]:
    return [trace for trace in figure.data if trace.name == name and trace.yaxis == f"y{panel}"]


def points(trace: Any) -> list[tuple[float, float]]:
    return list(zip(trace.x, trace.y, strict=True))


def test_a_run_without_these_stages_has_no_such_chart() -> None:
    assert draw(made.every_kind()) is None


def test_lines_run_over_the_iterations_whatever_the_order_of_the_records() -> None:
    figure = draw(all_kinds())
    drawn = [[(1, 1.125)], [(1, 2.0), (20, 1.25)], [(20, 1.25)]]
    assert [points(trace) for trace in lines(figure, "gain_backward", "2")] == drawn
    assert [points(trace) for trace in lines(figure, "gain_backward", "")] == [*drawn, [(1, 2222.0), (20, 2222.0)]]
    errors = [[(1, 0.75)], [(1, 1.5), (20, 0.5)], [(20, 0.5)]]
    assert [points(trace) for trace in lines(figure, "column_error", "3")] == errors, "nothing iterated, no error"
    assert {figure.layout[axis].type for axis in ("yaxis", "yaxis2", "yaxis3")} == {"log"}


def test_implementations_that_agree_are_rings_in_their_toolkits_colours() -> None:
    _, eager, triton = lines(draw(all_kinds()), "gain_backward", "2")
    assert [eager.line.color, triton.line.color] == [panels.COLOURS["eager"], panels.COLOURS["triton"]]
    assert (eager.marker.symbol, triton.marker.symbol) == ("circle", "circle-open")
    assert triton.marker.size > eager.marker.size


def test_every_number_says_whose_it_is() -> None:
    figure = draw(all_kinds())
    written = [text for trace in figure.data if trace.name == "values" for text in trace.text]
    assert {"gain s=8: 2 eager", "gain s=1: 1.12 eager", "gain_hc s=8: 2222 eager"} <= set(written)
    (hover,) = lines(figure, "gain_backward", "2")[2].hovertext
    told = hover.replace("<br>", " ")
    for fact in (
        "mhc/gain/triton_lanes",
        "t_max=20 s=8",
        "gain backward 1.25",
        "column error 0.5",
        "gain forward 1.5",
        "native",
    ):
        assert fact in told


def test_the_papers_numbers_are_dashed_and_named_as_quoted() -> None:
    quoted = [trace for trace in draw(all_kinds()).data if trace.name == "paper"]
    assert [(trace.y[0], trace.text[1], trace.line.dash) for trace in quoted] == [
        (3000, "paper: about 3000", "longdash"),
        (1.6, "paper: about 1.6", "longdash"),
        (1.6, "paper: about 1.6", "longdash"),
    ]


def test_a_check_on_fewer_tokens_is_told_with_the_number() -> None:
    said = "checked at T=65 instead of 256: interpreted runs are slow; a CUDA device checks all"
    record = gain("triton_lanes", 1.0, 0.5, t_max=20, s=8).model_copy(
        update={"warnings": ["bytes not counted: x", said]}
    )
    (trace,) = lines(draw([record]), "gain_backward", "2")
    assert "checked at T=65 instead of 256" in trace.hovertext[0].replace("<br>", " ")


def test_a_case_without_gains_is_named_with_its_reason_and_names_stay_text() -> None:
    reason = Reason(code="not_finite", text="1 of 256 elements are NaN")
    shape = {"T": 256, "n": 4, "L": 60, "t_max": 20, "s": 100}
    lost = made.record("mhc/gain/eager", shape, status="wrong", execution=None, reason=reason)
    figure = draw([lost, gain(made.HOSTILE, 1.0, 0.5, t_max=20, s=8)])
    (note,) = figure.layout.meta["notes"]
    assert note.startswith("wrong: 1 of 256 elements are NaN [not_finite]: mhc/gain/eager") and "s=100" in note
    assert not any(
        "<script" in text for trace in figure.data for text in (*(trace.text or ()), *(trace.hovertext or ()))
    )
