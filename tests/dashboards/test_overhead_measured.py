"""Overheads of steps and where they go: what is drawn is what the records hold, and what is undecided looks so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made_records as made
import pytest

from perflab import machine, machines, store, workspace
from perflab.analyse import derive, parts, steps
from perflab.catalogue import load_module
from perflab.present import pages
from perflab.present.formats import frame
from perflab.record import Part, Reason, Record, Step

ROOT = Path(__file__).resolve().parents[2]
ABOUT = {"run_id": made.RUN_ID, "compute": {"matmul": {"fp32": 1e11}, "launch_s": 1e-6}}
SIZES = {"T": 512, "n": 4}


def chart(name: str, records: list[Record], about: dict[str, Any] | None = None) -> Any:
    about = ABOUT if about is None else about
    derived = derive.derive(records, about, derive.metrics(ROOT / "dashboards"))
    return getattr(load_module(ROOT / "dashboards" / f"{name}.py"), name)(frame(records, derived), about)


def step(stem: str, factor: float, parts_: list[Part], **fields: Any) -> Record:
    """Steps of 6 rounds with 2 samples each; the rounds drift, and `factor` is over the drift."""
    samples = [1e-2 * (1 + 0.1 * (index // 2)) * factor for index in range(12)]
    latency = made.latency(samples).model_copy(update={"block_starts": [0, 2, 4, 6, 8, 10]})
    told = {"toolkit": "eager", "pass": "step", "dtype": "fp32", "compulsory": None, "traffic": [], "label": "tiny"}
    told |= {
        "baseline": "residual",
        "latency": latency,
        "step": Step(tokens=512, flops=1e8, parts=parts_, profiler_s=1e-6),
    }
    return made.record(f"mhc/step/{stem}", SIZES, **(told | fields))


def part(name: str, phase: Any, seconds: float, launches: int = 0) -> Part:
    return Part(name=name, phase=phase, seconds=seconds, launches=launches)


@pytest.fixture
def records() -> list[Record]:
    base = [part("attention", "forward", 5e-3, 100), part("optimiser", "update", 5e-3, 10)]
    more = [
        part("attention", "forward", 4e-3, 100),
        part("optimiser", "update", 5e-3, 10),
        part("write", "backward", 4e-3, 500),
    ]
    wide = ["undecided: the 95% interval of the overhead is 9.0 percentage points wide"]
    return [
        step("residual", 1.0, base),
        step("mhc_eager", 1.25, more),
        step("hc", 1.5, base, warnings=wide),
        step("mhc_triton", 1.0, [], execution="interpreted", toolkit="triton", latency=None),
        step("mhc_tilelang", 1.0, [], status="skipped", toolkit="tilelang", latency=None, step=None, execution=None,
             accuracy=None, reason=Reason(code="missing_toolkit", text="needs tilelang")),
    ]  # fmt: skip


def test_a_mark_is_the_overhead_and_drift_does_not_show(records: list[Record]) -> None:
    figure = chart("overhead_measured", records)
    marks = next(trace for trace in figure.data if trace.name == "overhead")
    assert list(marks.x) == pytest.approx([25.0, 50.0])
    assert list(marks.error_x.array) == pytest.approx([0, 0], abs=1e-9)
    assert list(marks.marker.symbol) == ["circle", "circle-open"]


def test_every_case_without_an_overhead_says_why(records: list[Record]) -> None:
    notes = " | ".join(chart("overhead_measured", records).layout.meta["notes"])
    assert "the baseline: mhc/step/residual" in notes
    assert "checked, not timed: interpreted here: mhc/step/mhc_triton" in notes
    assert "needs tilelang" in notes


def test_parts_and_the_rest_add_up_to_what_was_measured(records: list[Record]) -> None:
    figure = chart("overhead_attribution", records)
    by_row: dict[str, float] = {}
    for trace in figure.data:
        for row, value in zip(trace.y, trace.x, strict=True):
            by_row[row] = by_row.get(row, 0) + value
    eager = {row.partition(": ")[2]: value for row, value in by_row.items() if row.startswith("mhc_eager")}
    whole = parts.measured(records[1], records[0])
    assert sum(eager.values()) == pytest.approx(1e3 * whole)
    assert eager["forward"] == pytest.approx(-1.0) and eager["backward"] == pytest.approx(4.0)
    assert eager["not explained"] == pytest.approx(1e3 * whole - 3.0)
    hatched = [trace for trace in figure.data if trace.marker.pattern.shape == "/" and trace.name == "write"]
    assert [value for trace in hatched for value in trace.x] == pytest.approx([0.5]), "500 launches of 1 us"
    assert any("explain 96%" in note for note in figure.layout.meta["notes"])


def test_without_a_measured_launch_nothing_is_hatched(records: list[Record]) -> None:
    figure = chart("overhead_attribution", records, {"run_id": made.RUN_ID})
    assert not any(trace.marker.pattern.shape for trace in figure.data)
    assert any("not told apart" in note for note in figure.layout.meta["notes"])


def test_a_run_of_steps_has_all_its_pages(records: list[Record], tmp_path: Path) -> None:
    sizes = {"B": 4, "S": 128, "n": 4, "layers": 4}
    results = made.write(tmp_path, [record.model_copy(update={"shape": sizes}) for record in records])
    place = workspace.find(explicit=ROOT, results=results)
    index = pages.build(store.find(results, None), place, tmp_path / "site")
    assert 'id="figure-overhead_measured"' in index.with_name("overhead.html").read_text()
    assert "tiny" in index.read_text()


@pytest.mark.parametrize("name", ["overhead_measured", "overhead_attribution"])
def test_runs_without_steps_have_no_such_chart(name: str) -> None:
    assert chart(name, made.every_kind()) is None


def test_the_share_explained_is_a_column(records: list[Record]) -> None:
    derived = derive.derive(records, ABOUT, derive.metrics(ROOT / "dashboards"))
    assert derived[0]["explained"] is None and derived[1]["explained"] == pytest.approx(3e-3 / (0.25 * 1.25e-2))


@pytest.mark.parametrize(
    ("of_rate", "of_step", "told"), [(1, 1, True), (2, 1, False), (None, 1, False), (1, None, False)]
)
def test_utilisation_is_of_a_rate_with_as_many_threads(
    records: list[Record], of_rate: int | None, of_step: int | None, told: bool
) -> None:
    about = ABOUT | {"compute": ABOUT["compute"] | {"threads": of_rate}}
    stepped = [
        one.model_copy(update={"step": one.step and one.step.model_copy(update={"threads": of_step})})
        for one in records
    ]
    found = derive.derive(stepped, about, derive.metrics(ROOT / "dashboards"))[1]["flops_utilisation"]
    assert found == (pytest.approx(1e8 / (1.25 * 1.25e-2) / 1e11) if told else None)


def measured_machine() -> dict[str, Any]:
    """What a run says of a machine that it has measured whole."""
    return ABOUT | {
        "device": "cpu", "machine": {"cpu": "a cpu", "cores": 2, "memory_bytes": 10**10},
        "ceiling": [{"kernel": "copy", "working_set_bytes": 10**9, "outside_cache": True, "bandwidth": 2e10}],
    }  # fmt: skip


def test_what_was_measured_stands_beside_what_is_projected_of_the_same_model_and_machine(records: list[Record]) -> None:
    figure = chart("overhead_compared", records, measured_machine())
    found = {trace.name: dict(zip(trace.y, trace.x, strict=True)) for trace in figure.data}
    baseline, eager = (records[at].latency for at in (0, 1))
    assert baseline and eager
    plain = sorted(baseline.samples_s)[5:7]
    extra = sorted(eager.samples_s)[5:7]
    assert found["measured"]["tiny: plain step"] == pytest.approx(1e3 * sum(plain) / 2)
    assert found["measured"]["tiny: mhc_eager adds"] == pytest.approx(1e3 * (sum(extra) - sum(plain)) / 2)
    overhead = load_module(ROOT / "kernels" / "mhc" / "overhead.py")
    projection = overhead.project("tiny", machines.of_run(measured_machine()))
    assert found["projected"]["tiny: plain step"] == pytest.approx(1e3 * projection.baseline())
    assert found["projected"]["tiny: mhc_eager adds"] == pytest.approx(1e3 * sum(projection.seconds("naive").values()))


def test_nothing_is_held_to_a_machine_that_was_not_measured_or_to_other_sizes(records: list[Record]) -> None:
    assert chart("overhead_compared", records) is None
    assert chart("overhead_compared", records, measured_machine() | {"compute": None}) is None
    other = [record.model_copy(update={"label": "tiny C=256"}) for record in records]
    assert chart("overhead_compared", other, measured_machine()) is None


def test_a_step_is_compared_with_the_baseline_of_its_own_group_only(records: list[Record]) -> None:
    wide = {record.implementation: record.model_copy(update={"shape": SIZES | {"T": 1024}}) for record in records}
    lonely = [records[0], wide["mhc/step/mhc_eager"]]
    assert list(steps.pairs(lonely)) == []
    both = [record for record, _ in steps.pairs([*records, *wide.values()])]
    assert [one.implementation for one in both] == ["mhc/step/mhc_eager", "mhc/step/hc"] * 2


def test_the_newest_run_of_this_machine_that_timed_the_preset_is_taken(tmp_path: Path, records: list[Record]) -> None:
    here = measured_machine() | {"machine": machine.fingerprint(ROOT)["machine"] | {"gpus": []}}
    for name, about, held in (
        ("20260101-000000-step-aaaa", here, records),
        ("20260102-000000-step-bbbb", here, []),
        ("20260103-000000-step-cccc", measured_machine(), records),
        # Of another dtype, or of a CPU where the machine has a GPU: neither hides an earlier run of what is projected.
        ("20260103-120000-case-eeee", here, [one.model_copy(update={"dtype": "bf16"}) for one in records]),
        ("20260103-130000-case-ffff", here, [one.model_copy(update={"device": "cuda"}) for one in records]),
        # Another's design beside its baseline: it hides no earlier run of what is projected.
        ("20260104-000000-case-dddd", here, [one for one in records if not one.implementation.endswith("mhc_eager")]),
    ):
        run = store.Run(tmp_path / name)
        run.folder.mkdir()
        run.write_about(about | {"run_id": name})
        for record in held:
            run.append(record.model_copy(update={"run_id": name}))
    if machine.gpus():
        pytest.skip("runs of a machine with a GPU name it")
    found = steps.newest_here(tmp_path, "tiny", ["mhc_eager", "mhc_triton"], "fp32")
    assert {one.run_id for one in found} == {"20260101-000000-step-aaaa"}
    assert [one.implementation for one in found] == ["mhc_eager", "hc"]
    assert {one.device for one in found} == {"cpu"}
    assert steps.newest_here(tmp_path, "small", ["mhc_eager"], "fp32") == []
