"""The pipeline's timeline: what is projected follows from presets and contracts, what is noted from the records."""

from __future__ import annotations

import itertools
from pathlib import Path

import made_records as made
import pandas
import pytest

from perflab.analyse import derive
from perflab.catalogue import load_module
from perflab.measure import pipeline_orders
from perflab.present.formats import frame
from perflab.record import Span, Step

DASHBOARDS = Path(__file__).resolve().parents[2] / "dashboards"
chart = load_module(DASHBOARDS / "pipeline_timeline.py")


def draw(*records):
    derived = derive.derive(list(records), made.about(), derive.metrics(DASHBOARDS))
    return chart.pipeline_timeline(frame(list(records), derived), made.about())


def words(figure):
    return [annotation.text.replace("<br>", " ") for annotation in figure.layout.annotations]


def on_panel(figure, number):
    return [trace for trace in figure.data if trace.xaxis == ("x" if number == 1 else f"x{number}")]


def test_the_kept_order_is_torchs():
    assert chart.order() == pipeline_orders.order("DualPipeV", chart.RANKS, 20)


def test_every_projected_panel_says_so_and_shows_all_ranks():
    figure = draw(made.record("mhc/pre/eager", {"T": 4, "n": 4, "C": 8}))
    told = words(figure)
    assert len(told) == 3
    assert all(text.startswith("<b>projected") for text in told)
    for number in (1, 2, 3):
        bars = on_panel(figure, number)
        assert {rank for trace in bars for rank in trace.y} == set(range(chart.RANKS))
    assert any("quoted" in note for note in figure.layout.meta["notes"])
    assert any("assumed" in note for note in figure.layout.meta["notes"])


def test_bars_are_the_simulated_pieces_and_ranks_do_one_at_a_time():
    figure = draw(made.record("mhc/pre/eager", {"T": 4, "n": 4, "C": 8}))
    off = next(iter(chart.mhc().values()))
    drawn = sorted(
        (rank, begin, begin + length)
        for trace in on_panel(figure, 2)
        for rank, begin, length in zip(trace.y, trace.base, trace.x, strict=True)
    )
    expected = sorted((event.rank, event.start, event.end) for event in off.timeline if event.stream == "compute")
    assert drawn == [pytest.approx(one) for one in expected]
    for (rank, _, end), (other, begin, _) in itertools.pairwise(drawn):
        assert rank != other or end <= begin + 1e-9


def test_the_table_of_measures_is_the_simulators():
    told = words(draw(made.record("mhc/pre/eager", {"T": 4, "n": 4, "C": 8})))[2]
    plain = chart.simulate(
        chart.order(), chart.durations(0), chart.link(), chart.message_bytes(0), chart.Execution(interleaved=True)
    )
    for one, play in chart.mhc().items():
        assert f"{chart._measures(one)}: {play.step_s / plain.step_s - 1:+.1%} over plain" in told


def test_messages_and_work_grow_as_the_paper_has_it():
    assert chart.message_bytes(4) == 4 * chart.message_bytes(0) == 4 * 2 * 4096 * 2560
    (plain, *_), (mhc, *_) = chart.durations(0), chart.durations(4)
    assert mhc.forward > plain.forward
    assert mhc.backward_input > plain.backward_input
    assert mhc.backward_weight == plain.backward_weight
    # One of three parts of 6 FLOPs a parameter and token, over ten stages.
    model = load_module(DASHBOARDS.parent / "kernels/mhc/model/presets.py").presets()["27b"]
    assert 10 * 3 * plain.backward_weight == pytest.approx(model.flops_per_token() * 4096 / (0.4 * 989.4e12))


def test_a_frame_without_records_has_the_projected_panels_alone():
    assert len(words(chart.pipeline_timeline(pandas.DataFrame(), {}))) == 3


def test_a_run_s_own_pipelines_are_shown_as_noted_and_as_simulated():
    step = Step(
        tokens=8,
        flops=1.0,
        predicted_s=0.5,
        measured=[Span(0, "compute", 0.0, 0.2, "0F0"), Span(1, "compute", 0.2, 0.6, "1B0")],
        predicted=[
            Span(0, "compute", 0.0, 0.1, "0F0"),
            Span(0, "send", 0.1, 0.2, "0F0"),
            Span(1, "compute", 0.2, 0.5, "1 update"),
        ],
    )
    record = made.record("mhc/pipeline/mhc_1f1b", {"T": 1, "n": 4, "p": 2, "m": 2}, step=step)
    figure = draw(record)
    told = [a.text for a in figure.layout.annotations]
    assert told[3].startswith("<b>measured: mhc/pipeline/mhc_1f1b")
    assert told[4].startswith("<b>simulated: ") and "500 ms" in told[4]
    shown = {
        number: [(t.name, *t.y, *t.base, *t.x) for t in figure.data if t.xaxis == f"x{number}"] for number in (4, 5)
    }
    assert shown[4] == [("forward", 0, 0.0, 0.2), ("backward", 1, 0.2, 0.39999999999999997)]
    assert shown[5] == [("forward", 0, 0.0, 0.1), ("update", 1, 0.2, 0.3)]
