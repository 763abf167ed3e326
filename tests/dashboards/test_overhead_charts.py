"""Charts of projections and of decoding: their numbers are the modules', and they say what they are."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import made_records as made
import plotly.graph_objects as go
import pytest

from perflab.analyse import derive
from perflab.catalogue import load_module
from perflab.present import pages
from perflab.present.formats import frame
from tests.conftest import ROOT

DASHBOARDS, MHC = ROOT / "dashboards", ROOT / "kernels" / "mhc"
OVERHEAD, INFERENCE, TRAFFIC = (load_module(MHC / f"{name}.py") for name in ("overhead", "inference", "traffic"))
SUBJECT = load_module(DASHBOARDS / "_subject.py")
PAGES = {
    "overhead_projection": "Overhead", "overhead_map": "Overhead", "overhead_beliefs": "Overhead",
    "inference_cache": "Inference", "inference_share": "Inference",
}  # fmt: skip


def draw(name: str, dashboards: Path = DASHBOARDS) -> go.Figure | None:
    """The chart on the page of any run: here of made records."""
    records = made.every_kind()
    derived = derive.derive(records, made.about(), derive.metrics(dashboards))
    chart = next(chart for chart in pages.charts(dashboards) if chart.name == name)
    return chart.function(frame(records, derived), made.about())


def projection() -> Any:
    return OVERHEAD.project("27b", SUBJECT.quoted("h200"))


@pytest.mark.parametrize("name, page", PAGES.items())
def test_it_stands_on_its_page_and_says_what_it_rests_on(name: str, page: str) -> None:
    assert page == load_module(DASHBOARDS / f"{name}.py").PAGE
    figure = draw(name)
    assert figure is not None
    notes = " ".join(figure.layout.meta["notes"])
    if name.startswith("overhead"):
        runs = {row["run"] for row in TRAFFIC.rows() if not row.get("decode")}
        assert "projected, not measured: 27b on h200" in notes and all(run in notes for run in runs)
        assert all(assumption in notes for assumption in OVERHEAD.stated_fields())
    else:
        assert "computed" in notes


@pytest.mark.parametrize("name", PAGES)
def test_a_workspace_without_the_subject_has_no_such_chart(name: str, tmp_path: Path) -> None:
    shutil.copytree(DASHBOARDS, tmp_path / "dashboards", ignore=shutil.ignore_patterns("__pycache__"))
    assert draw(name, tmp_path / "dashboards") is None


def test_bars_are_the_causes_and_the_words_their_sum() -> None:
    figure, one = draw("overhead_projection"), projection()
    assert figure is not None
    for bar in (trace for trace in figure.data if trace.type == "bar"):
        cause = bar.legendgroup
        for row, value in zip(bar.y, bar.x, strict=True):
            variant = row.replace(" +<br>", " + ")
            assert value == pytest.approx(100 * one.seconds(variant)[cause] / one.baseline())
    told = [text for trace in figure.data if trace.name == "in all" for text in trace.text]
    assert sorted(told) == sorted(f" <b>{one.overhead(name):.1%}</b>" for name in OVERHEAD.VARIANTS)
    # The paper's claim on both axes.
    assert [shape.x0 for shape in figure.layout.shapes] == [pytest.approx(6.7)] * 2


def test_the_map_s_values_are_projections_and_every_machine_has_its_line() -> None:
    figure, one = draw("overhead_map"), projection()
    assert figure is not None
    heat = figure.data[0]
    for i, j in ((0, 0), (5, 20), (24, 24)):
        assert heat.z[i][j] == pytest.approx(one.with_(utilisation=heat.x[j], achieved=heat.y[i]).overhead())
    lines = [trace for trace in figure.data if trace.type == "contour"]
    assert sorted(name for line in lines for name in line.name.split(", ")) == ["b200", "h100", "h200", "h800"]
    assert {line.contours.start for line in lines} == {0.067}


def test_the_tornado_s_bars_end_where_the_assumptions_do() -> None:
    figure, one = draw("overhead_beliefs"), projection()
    assert figure is not None
    bars = {bar[0]: bar for bar in OVERHEAD.sensitivity(one)}
    low, high, needed = figure.data
    assert set(low.y) == set(bars)
    for trace, at in ((low, 2), (high, 4)):
        for name, base, width in zip(trace.y, trace.base, trace.x, strict=True):
            assert base + width == pytest.approx(100 * bars[name][at])
    widths = [abs(bars[name][4] - bars[name][2]) for name in low.y]
    assert widths == sorted(widths)
    told = dict(zip(needed.y, needed.text, strict=True))
    for name, found in OVERHEAD.believed(one):
        assert ("no value" in told[name]) == (found is None)


def test_caches_are_the_formula_s_and_the_quoted_sizes_stand_there() -> None:
    figure = draw("inference_cache")
    assert figure is not None
    every = next(trace for trace in figure.data if trace.name.startswith("every head"))
    assert list(every.y) == [2 * 32 * context * 4096 * 2 for context in every.x]
    assert "8K tokens 4,294,967,296 B = 4 GiB; 128K tokens 68,719,476,736 B = 64 GiB" in figure.layout.meta["notes"][0]


def test_decoding_s_bars_are_the_steps_parts() -> None:
    figure = draw("inference_share")
    assert figure is not None
    preset = OVERHEAD.presets()["27b"]
    for index, batch in enumerate((1, 4, 16, 64, 256)):
        step = INFERENCE.decode(preset, batch, 4096)
        parts = [trace.y[index] for trace in figure.data if trace.type == "bar"]
        assert parts == pytest.approx([step.shared, step.experts, step.cache, step.sites])
        assert figure.data[-1].text[index].startswith(f"{step.share:.1%}<br>(")
    runs = {row["run"] for row in TRAFFIC.rows() if row.get("decode")}
    assert all(run in figure.layout.meta["notes"][0] for run in runs)
