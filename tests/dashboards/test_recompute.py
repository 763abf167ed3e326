"""The recomputation chart against the records: bytes, peaks, times and the words about the best block."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import made_records as made
import plotly.graph_objects as go

from perflab.analyse import derive
from perflab.present import pages, panels
from perflab.present.formats import frame
from perflab.record import Memory, Reason, Record

DASHBOARDS = Path(__file__).resolve().parents[2] / "dashboards"
SIZES = {"T": 10, "n": 4, "C": 100, "L": 12}


def step(block: int, peak: int, stem: str = "eager", **fields: Any) -> Record:
    """A made training step of a stack with blocks of `block` sites."""
    memory = Memory(saved_bytes=1000 + block, peak_bytes=peak, source="allocator")
    parts = {"pass": "forward_backward", "memory": memory, "latency": made.latency([1e-3 * (block + 1)] * 7)}
    return made.record(f"mhc/stack/{stem}", SIZES | {"L_r": block}, **parts | fields)


def draw(records: list[Record]) -> go.Figure | None:
    """The chart of made records."""
    derived = derive.derive(records, made.about(), derive.metrics(DASHBOARDS))
    chart = next(chart for chart in pages.charts(DASHBOARDS) if chart.name == "recompute")
    return chart.function(frame(records, derived), made.about())


def lines(figure: go.Figure | None, name: str) -> list[Any]:
    assert figure is not None
    return [trace for trace in figure.data if trace.name == name]


def words(figure: go.Figure | None) -> list[str]:
    assert figure is not None
    return [" ".join(annotation.text.replace("<br>", " ").split()) for annotation in figure.layout.annotations]


def test_each_panel_shows_the_records_in_the_order_of_their_blocks() -> None:
    figure = draw([step(3, 70_000), step(1, 90_000), step(0, 200_000)])
    saved, peak, time = lines(figure, "eager")
    assert list(saved.x) == list(peak.x) == list(time.x) == [0, 1, 3]
    assert list(saved.y) == [1000, 1001, 1003]
    assert list(peak.y) == [200_000, 90_000, 70_000]
    assert list(time.y) == [1e-3, 2e-3, 4e-3]
    assert figure is not None and list(figure.layout.xaxis.ticktext) == ["all kept", "1", "3"]


def test_equation_20_stands_beside_the_peaks_alone() -> None:
    figure = draw([step(block, 10**5) for block in (0, 1, 2, 3, 12)])
    (curve,) = lines(figure, "equation 20")
    assert list(curve.x) == [1, 2, 3, 12], "all kept is no block"
    assert list(curve.y) == [2 * 10 * 100 * (4 * math.ceil(12 / block) + 6 * block) for block in curve.x]
    assert curve.yaxis == lines(figure, "eager")[1].yaxis


def test_words_name_the_formula_s_best_block_and_the_measured_one() -> None:
    (told,) = words(draw([step(0, 250_000), step(1, 90_000), step(2, 70_000), step(4, 70_000), step(12, 120_000)]))
    assert "Equation 20 is least at L_r = 3." in told
    assert "eager: peak least at L_r = 2 or 4, 70 kB (tried 1, 2, 4, 12); 250 kB with all kept" in told


def test_shapes_and_dtypes_have_panels_of_their_own() -> None:
    figure = draw([step(1, 1), step(1, 2, "tilelang_rebuild", dtype="fp32", latency=None, execution="emulated")])
    titles = [text.replace("<b>", "").replace("</b>", "") for text in words(figure)]
    assert [title.partition(" Equation")[0] for title in titles] == [
        "mhc/stack T=10 n=4 C=100 L=12 bf16 on cpu", "mhc/stack T=10 n=4 C=100 L=12 fp32 on cpu"]  # fmt: skip
    assert len(lines(figure, "eager")) == 3 and len(lines(figure, "tilelang_rebuild")) == 2
    assert figure is not None
    domains = [figure.layout[f"yaxis{number}"].domain for number in range(1, 6)]
    assert "yaxis6" not in figure.layout, "nothing was timed in fp32: no empty panel"
    assert all(upper[0] > lower[1] for upper, lower in itertools.pairwise(domains)), "none overlaps"


def test_a_name_stands_once_in_the_legend_and_a_toolkit_s_second_line_is_dotted() -> None:
    figure = draw([step(1, 1), step(1, 2, "eager_checkpoint"), step(1, 3, "triton_rebuild")])
    assert figure is not None
    assert sorted(trace.name for trace in figure.data if trace.showlegend) == [
        "eager", "eager_checkpoint", "equation 20", "triton_rebuild"]  # fmt: skip
    dashes = {trace.name: trace.line.dash for trace in figure.data}
    assert (dashes["eager"], dashes["eager_checkpoint"], dashes["triton_rebuild"]) == ("solid", "dot", "solid")
    assert lines(figure, "eager_checkpoint")[0].line.color == panels.COLOURS["eager"]


def test_what_is_missing_from_a_panel_says_why() -> None:
    reason = Reason(code="missing_toolkit", text="needs the package triton, which is not installed")
    absent: dict[str, Any] = {"memory": None, "latency": None}
    figure = draw([
        step(1, 1), step(2, 1, latency=None, execution="interpreted"), step(3, 1, memory=None),
        step(4, 1, "triton_rebuild", status="skipped", execution=None, reason=reason, **absent),
        step(6, 1, "triton_rebuild", status="skipped", execution=None, reason=reason, **absent),
    ])  # fmt: skip
    assert figure is not None
    assert figure.layout.meta["notes"] == [
        "not timed: interpreted only: eager bf16 at L_r = 2",
        "memory not measured: eager bf16 at L_r = 3",
        "skipped: needs the package triton, which is not installed [missing_toolkit]: triton_rebuild bf16 at L_r = 4, 6",
    ]


def test_a_run_without_training_steps_of_stacks_has_no_such_chart() -> None:
    assert draw(made.every_kind()) is None
    assert draw([step(1, 1, **{"pass": "backward"})]) is None


def test_names_are_no_markup() -> None:
    figure = draw([step(1, 1, "hostile", implementation=f"mhc/stack/{made.HOSTILE}")])
    assert figure is not None
    assert not any("<script" in str(trace.name) + str(trace.hovertext) for trace in figure.data)
    assert not any("<script" in text for text in words(figure))
