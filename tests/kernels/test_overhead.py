"""The projection: counts are the kept runs', formulas are hand-checked, and nothing but stated assumptions matters."""

from __future__ import annotations

import ast
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from perflab import machines
from perflab.analyse import steps
from perflab.analyse.overhead import Overhead
from perflab.catalogue import load_module

ROOT = Path(__file__).resolve().parents[2]
MHC = ROOT / "kernels" / "mhc"
OVERHEAD, TRAFFIC = load_module(MHC / "overhead.py"), load_module(MHC / "traffic.py")
WIDTHS = [(1280, "bf16"), (1920, "bf16"), (2560, "bf16"), (128, "bf16"), (128, "fp32"), (256, "bf16"), (256, "fp32")]
ITEM = {"bf16": 2, "fp32": 4}


def projection(model: str = "27b", machine: str = "h200", **given: float) -> Any:
    return OVERHEAD.project(model, machines.load(machine, ROOT), given)


# Counts


def test_the_counts_are_those_of_the_kept_runs() -> None:
    script = load_module(ROOT / "benchmarks" / "site_traffic.py")
    runs = sorted({row["run"] for row in TRAFFIC.rows()})
    assert {run.split("-")[2] for run in runs} >= {"projection", "decode"}
    assert script.table(runs) == (MHC / "traffic.json").read_text()


def test_every_case_of_the_suites_was_counted() -> None:
    counted = [row for row in TRAFFIC.rows() if not row.get("decode")]
    cases = set()
    for run in {row["run"] for row in TRAFFIC.rows()}:
        about = json.loads((ROOT / "results" / run / "run.json").read_text())
        assert about["interrupted"] is False and about["commit"]["dirty"] is False
        cases |= set(about["cases"])
    assert len(cases) == len(TRAFFIC.rows())
    assert {row["source"] for row in counted if row["toolkit"] == "eager"} == {"dispatch"}
    assert {row["source"] for row in counted if row["toolkit"] == "triton"} == {"interpreted"}


@pytest.mark.parametrize("C, dtype", WIDTHS)
def test_a_site_is_its_read_its_write_and_one_more_pass_over_x_s_gradient(C: int, dtype: str) -> None:
    """The cross-check of three counts: what is left of a site, to the byte, is what its kernels are known to do."""
    counted = TRAFFIC.Counted(C, dtype)
    streams = 4 * C * ITEM[dtype]
    fused, eager = counted.site("triton")["meeting"], counted.site("eager")["meeting"]
    assert fused["forward"] == eager["forward"] == TRAFFIC.Moved()
    # Fused, the read's backward reads what the write's wrote, and adds; eager, an addition reads two and writes one.
    assert fused["backward"] == TRAFFIC.Moved(streams, 0)
    assert eager["backward"] == TRAFFIC.Moved(3 * streams, 1)


@pytest.mark.parametrize("C, dtype", WIDTHS)
def test_the_layer_function_that_is_taken_off_is_a_gain_per_channel(C: int, dtype: str) -> None:
    counted = TRAFFIC.Counted(C, dtype)
    row = C * ITEM[dtype]
    tokens = {1280: 4096, 1920: 4096, 2560: 4096, 128: 512, 256: 1024}[C]
    # Forward u and w are read, f is written; backward two products, and the sum of one of them over tokens.
    assert counted.layer_function("forward") == TRAFFIC.Moved(2 * row + row / tokens, 1)
    assert counted.layer_function("backward") == TRAFFIC.Moved(6 * row + 2 * row / tokens, 3)


@pytest.mark.parametrize("C, dtype", WIDTHS)
def test_rebuilding_a_block_is_affine_in_its_sites(C: int, dtype: str) -> None:
    (four,) = (
        row for row in TRAFFIC.rows()
        if (row["stage"], row["toolkit"], row["C"], row["dtype"], row.get("L")) == ("mhc/recompute", "triton", C, dtype, 4)
    )  # fmt: skip
    rebuilt = TRAFFIC.Counted(C, dtype).rebuild(4)
    assert rebuilt.bytes == pytest.approx((four["read_bytes"] + four["write_bytes"]) / four["T"], rel=1e-12)
    assert rebuilt.launches == four["launches"] == 1


def test_a_width_that_was_not_counted_says_which_were() -> None:
    with pytest.raises(ValueError, match=r"C=96 bf16: .* not counted; .*projection\.toml .*C=2560 bf16"):
        TRAFFIC.Counted(96, "bf16").site("triton")


# Formulas


def test_the_baseline_is_the_model_s_flops_at_the_utilisation() -> None:
    one = projection(utilisation=0.25)
    assert one.baseline() == pytest.approx(one.preset.flops_per_token() * 1280 * 4096 / (0.25 * 989.4e12), rel=1e-12)


@pytest.mark.parametrize("variant, toolkit", [("naive", "eager"), ("fused", "triton")])
def test_on_one_device_with_free_launches_overhead_is_bytes_over_bandwidth(variant: str, toolkit: str) -> None:
    one = projection(pipeline=1, launch=0.0, utilisation=0.5, achieved=0.75)
    counted = TRAFFIC.Counted(2560, "bf16")
    moved = sum(m.bytes for part in counted.site(toolkit).values() for m in part.values())
    # The plain residual reads x and f and writes y, 6 C bytes; backward two gradients become one.
    extra = 60 * (moved - 2 * 6 * 2560) / (0.75 * 4.8e12)
    assert one.overhead(variant) == pytest.approx(extra / (one.preset.flops_per_token() / (0.5 * 989.4e12)), rel=1e-12)


def test_recomputation_adds_its_blocks_and_the_norms() -> None:
    one = projection(pipeline=6, block=4)
    counted = TRAFFIC.Counted(2560, "bf16")
    # Ten sites a stage: blocks of 4, 4 and 2, and a norm of every read that is read and written.
    moved = 6 * (2 * counted.rebuild(4).bytes + counted.rebuild(2).bytes + 10 * 2 * 2560 * 2)
    seconds = one.seconds("fused + recompute")
    assert seconds["rebuild"] == pytest.approx(moved * one.preset.tokens / (0.8 * 4.8e12), rel=1e-12)
    more = {cause for cause, value in one.seconds("fused").items() if value != seconds[cause]}
    assert more == {"rebuild", "launches", "idle"}


def test_messages_are_three_more_streams_both_ways_over_every_boundary() -> None:
    one = projection(pipeline=6, exposed=0.5)
    boundaries, more = 5, 3 * 2560 * 2
    assert one.seconds("fused")["messages"] == pytest.approx(0.5 * 2 * boundaries * more * one.preset.tokens / 50e9)
    assert one.seconds(OVERHEAD.PAPERS)["messages"] == 0


def test_overlap_hides_the_write_of_every_second_site() -> None:
    write = OVERHEAD.Counted(2560, "bf16").site("triton")["write"]
    of_forward = write["forward"].bytes / (write["forward"].bytes + write["backward"].bytes)
    for forward, backward in ((0.5, 0.5), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)):
        one = projection(hidden_write=forward, hidden_write_backward=backward)
        shown = 1 - (forward * of_forward + backward * (1 - of_forward)) / 2
        assert one.seconds(OVERHEAD.PAPERS)["write"] == pytest.approx(shown * one.seconds("fused")["write"])


def test_a_machine_that_lacks_the_chosen_link_but_has_another_is_no_machine_alone() -> None:
    h200 = machines.load("h200", ROOT / "results")
    for lacks, has in (("network", "nvlink"), ("nvlink", "network")):
        half = h200.model_copy(update={lacks: None})
        with pytest.raises(ValueError, match=f"h200 has no {lacks}, but {has}"):
            OVERHEAD.project("27b", half, {}, lacks)
        assert OVERHEAD.project("27b", half, {}, has).assumptions.pipeline > 1
        assert OVERHEAD.project("27b", half, {"link": 1e9, "pipeline": 2}, lacks).assumptions.link == 1e9
    alone = h200.model_copy(update={"network": None, "nvlink": None})
    assert OVERHEAD.project("27b", alone, {}).assumptions.pipeline == 1


def test_products_are_added_as_far_as_they_outlast_the_bytes() -> None:
    """Memory so fast that products are all that is left; on the machines that are quoted they hide behind bytes."""
    assert projection().seconds("fused")["products"] == 0
    fast = projection(bandwidth=1e18, pipeline=1, launch=0.0)
    spent = fast.seconds("fused")
    own = fast.products() * fast.preset.tokens / fast.assumptions.peak
    moving = sum(spent[part] for part in ("read", "write", "meeting"))
    assert spent["products"] + moving == pytest.approx(own)
    assert moving < 1e-3 * own


def test_an_idle_pipeline_stretches_what_is_added() -> None:
    one = projection(pipeline=6, micro_batches=20)
    spent = one.seconds("fused")
    idle = spent.pop("idle")
    assert idle == pytest.approx(sum(spent.values()) * 5 / 20)


def test_variants_stand_in_order_of_cost() -> None:
    one = projection()
    naive, fused, rebuilt, overlapped = (one.overhead(name) for name in OVERHEAD.VARIANTS)
    assert naive > rebuilt > fused > 0 and rebuilt > overlapped > 0


def test_a_pipeline_s_stage_keeps_the_first_streams_of_all_its_micro_batches() -> None:
    one = projection(pipeline=6)
    assert one.assumptions.block == min(range(1, 11), key=lambda block: 4 * 6 * math.ceil(10 / block) + 6 * block)


def test_activations_are_those_of_table_3() -> None:
    one = projection(pipeline=1, block=6)
    token = 4096 * 2560 * 2
    assert one.activations() == {"kept": 60 * 7 * token, "rebuilt": (4 * 10 + 60 + 6 * 6) * token}


def test_mhc_s_own_products_are_few() -> None:
    one = projection()
    # The projection alone: six FLOPs of each of its weights and tokens.
    weights = 60 * 4 * 2560 * 24
    assert 6 * weights < one.products() < 0.01 * one.preset.flops_per_token()


# Assumptions

#: Which way the overhead of the first and of the last variant with recomputation goes when the value grows.
GROWS = {
    "peak": (1, 1), "bandwidth": (-1, -1), "link": (-1, 0), "launch": (1, 1), "utilisation": (1, 1), "achieved": (-1, -1),
    "cached": (-1, -1), "micro_batch": (-1, -1), "micro_batches": (-1, -1), "exposed": (1, 0),
    "exposed_overlapped": (0, 1), "hidden_write": (0, -1), "hidden_write_backward": (0, -1),
    "hidden_rebuild": (0, -1), "claim": (0, 0),
    # The last site of a block needs no output of F: fewer blocks read more.
    "pipeline": (1, 1), "block": (1, 1),
}  # fmt: skip
RAISED = {"micro_batch": 2, "micro_batches": 64, "pipeline": 10, "block": 10, "exposed_overlapped": 0.5, "cached": 0.1}


@pytest.mark.parametrize("name", OVERHEAD.stated_fields())
def test_every_assumption_moves_the_overhead_the_way_it_should(name: str) -> None:
    given = {"exposed": 0.5, "hidden_write": 0.5, "hidden_write_backward": 0.5, "hidden_rebuild": 0.5, "block": 5}
    one = projection(**given)
    raised = one.with_(**{name: RAISED.get(name, 1.2 * getattr(one.assumptions, name))})
    changes = [raised.overhead(v) - one.overhead(v) for v in ("fused + recompute", OVERHEAD.PAPERS)]
    assert tuple((change > 0) - (change < 0) for change in changes) == GROWS[name]


def test_nothing_but_model_dtype_and_assumptions_matters() -> None:
    one = projection()
    sourceless = dataclasses.replace(one.assumptions, sources={})
    other = dataclasses.replace(one, machine="another", memory=1.0, model="x", assumptions=sourceless)
    assert [other.seconds(name) for name in OVERHEAD.VARIANTS] == [one.seconds(name) for name in OVERHEAD.VARIANTS]


def test_the_only_fractions_in_the_file_are_the_defaults_of_the_assumptions() -> None:
    for path in (MHC / "overhead.py", MHC / "traffic.py"):
        tree = ast.parse(path.read_text())
        stated = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name in ("Assumptions", "Moved")]
        inside = {id(node) for one in stated for node in ast.walk(one)}
        loose = [
            node.value for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, float) and id(node) not in inside
        ]  # fmt: skip
        assert set(loose) <= {0.0}, f"{path.name}: {loose}"


def test_every_assumption_has_a_source() -> None:
    a = projection(achieved=0.9).assumptions
    for name in OVERHEAD.stated_fields():
        assert a.source(name), name
    assert a.source("achieved") == "given"
    assert a.source("bandwidth") == "h200: quoted, NVIDIA H200 datasheet"


def test_what_one_would_have_to_believe_gives_the_claim() -> None:
    one = projection()
    found = dict(OVERHEAD.believed(one))
    assert set(found) == {bar[0] for bar in OVERHEAD.sensitivity(one)}
    some = [name for name, value in found.items() if isinstance(value, float)]
    assert {"utilisation", "achieved"} <= set(some)
    for name in some:
        assert one.with_(**{name: found[name]}).overhead() == pytest.approx(one.assumptions.claim, rel=1e-9)
    for name, value in found.items():
        ends = [one.with_(**{name: v}).overhead() for v in OVERHEAD.candidates(one, name)]
        if value is None:
            assert all(end > one.assumptions.claim for end in ends) or all(end < one.assumptions.claim for end in ends)
        elif isinstance(value, tuple):
            low, high = (one.with_(**{name: v}).overhead() for v in value)
            assert (low - one.assumptions.claim) * (high - one.assumptions.claim) <= 0


@pytest.mark.parametrize(
    "given, told",
    [
        ({"pipeline": 8}, r"pipeline: 8 stages do not divide 30 layers; \[1, 2, 3, 5, 6, 10, 15, 30\] do"),
        ({"pipeline": 0}, "pipeline: expected more than 0"),
        ({"pipeline": 2.5}, "pipeline: expected a whole number"),
        ({"utilisation": 0.0}, "utilisation: expected more than 0"),
        ({"utilisation": 1.1}, "utilisation: expected a share of at most 1"),
        ({"achieved": math.nan}, "achieved: expected more than 0"),
        ({"achieved": -0.5}, "achieved: expected more than 0"),
        ({"cached": 1.5}, "cached: expected a share of at most 1"),
        ({"launch": -1e-6}, "launch: expected at least 0"),
        ({"micro_batch": 7}, "micro_batch: 7 does not divide the batch of 1280"),
        ({"block": 11}, "block: a pipeline stage has 10 sites, got 11"),
        ({"micro_batch": 8, "micro_batches": 256}, "the batch of 1280 sequences has 160 of 8 at most"),
        ({"speed": 2.0}, "unknown assumption 'speed'"),
    ],
)
def test_what_cannot_be_is_refused_with_what_could(given: dict[str, float], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        projection(**given)


@pytest.mark.parametrize("model", OVERHEAD.presets())
def test_what_is_tried_can_be(model: str) -> None:
    """Every value of every range is one that could be given: no more micro-batches than the batch has, for instance."""
    machine = machines.load("h100", ROOT)
    one = OVERHEAD.project(model, machine)
    assert one.assumptions.micro_batch * one.assumptions.micro_batches <= one.preset.B
    for name in OVERHEAD.stated_fields():
        for value in OVERHEAD.candidates(one, name):
            one.with_(**{name: value})


def test_an_unknown_model_names_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"unknown model '270b': there are .*27b"):
        projection("270b")


def machine_alone() -> machines.Machine:
    quantity = machines.Quantity(value=1e10, source="given")
    return machines.Machine(
        name="here", about="alone", dtype="fp32", bandwidth=quantity, memory=quantity, peak=quantity,
        launch=machines.Quantity(value=1e-6, source="given"),
    )  # fmt: skip


def timed(implementation: str, extra_s: float, dtype: str = "fp32", spread: float = 1e-4) -> steps.TimedStep:
    """A step of twice the FLOPs that the machine alone has in a second, beside a plain one of 4 s."""
    share = extra_s / 4.0
    interval = Overhead(share, share - spread, share + spread)
    return steps.TimedStep("a-run", implementation, dtype, "cpu", 4.0 + extra_s, 4.0, 2e10, interval)


def test_a_projection_is_held_to_the_same_step_as_measured() -> None:
    one = OVERHEAD.project("tiny", machine_alone(), {"utilisation": 0.25})
    spent = sum(one.seconds("naive").values())
    measured = [timed("mhc_eager", 2 * spent), timed("hc", 1.0), timed("mhc_triton", 1.0, "bf16")]
    (found,) = OVERHEAD.held(one, measured)
    assert (found.variant, found.timed, found.projected_s) == ("naive", measured[0], spent)
    assert found.error == pytest.approx(-0.5)
    assert found.utilisation == pytest.approx(0.5)
    assert found.at_measured == pytest.approx(spent / 4.0)


@pytest.mark.parametrize("extra_s", [0.3, 0.0, -0.5])
def test_of_a_difference_that_may_be_none_no_error_is_told(extra_s: float) -> None:
    one = OVERHEAD.project("tiny", machine_alone())
    (found,) = OVERHEAD.held(one, [timed("mhc_eager", extra_s, spread=0.1)])
    assert found.error is None
    (section,) = (
        one for one in load_module(MHC / "overhead_report.py").sections(one, [found.timed]) if "beside" in one.title
    )
    assert "unknown" in section.rows[0]


def test_the_report_has_what_was_measured_beside_what_is_projected() -> None:
    one = OVERHEAD.project("tiny", machine_alone())
    report = load_module(MHC / "overhead_report.py")
    measured = [timed("mhc_eager", 2.0)]
    assert report.data(one)["measured"] == [] and report.data(one, measured)["measured"][0]["run"] == "a-run"
    titles = [[section.title for section in report.sections(one, told)] for told in ((), measured)]
    assert len(titles[1]) == len(titles[0]) + 1
    (more,) = set(titles[1]) - set(titles[0])
    assert more.startswith("Projected beside measured, of run a-run")


def test_variants_name_steps_that_there_are() -> None:
    there = {path.stem for path in (ROOT / "kernels" / "mhc" / "step").glob("*.py")}
    assert {one.step for one in OVERHEAD.VARIANTS.values() if one.step} <= there
    assert OVERHEAD.VARIANTS[OVERHEAD.PAPERS].step == ""


def test_on_a_machine_alone_nothing_is_cut() -> None:
    with pytest.raises(ValueError, match="no link to others"):
        OVERHEAD.project("tiny", machine_alone(), {"pipeline": 2})


@pytest.mark.parametrize("model", OVERHEAD.presets())
def test_every_preset_can_be_projected_on_every_machine(model: str) -> None:
    for name in ("b200", "h100", "h200", "h800"):
        assert 0 < projection(model, name).overhead() < projection(model, name).overhead("naive")
