"""The contract: sizes, compulsory bytes, dtypes."""

import pytest

from perflab import Normal, Stage, Tensor, Tolerance
from perflab.catalogue import discover
from tests.conftest import ROOT

SHAPE = {"T": 5, "n": 4, "C": 6}


def test_sizes_follow_the_expression():
    assert Tensor("T n*C n*n+2*n").sizes(SHAPE) == (5, 24, 24)


@pytest.mark.parametrize("bad", ["T**2", "f(T)", "T/2", "T.n", "1.5", "[T]"])
def test_other_expressions_are_refused(bad):
    with pytest.raises(ValueError, match="only names"):
        Tensor(bad).sizes(SHAPE)


def test_compulsory_bytes_of_post_res_by_hand():
    stage = discover(ROOT / "kernels").stage("mhc/post_res").contract
    T, n, C = 7, 4, 10
    forward = stage.compulsory({"T": T, "n": n, "C": C}, "bf16")
    assert forward.read_bytes == T * (n * C * 2 + C * 2 + n * 4 + n * n * 4)
    assert forward.write_bytes == T * n * C * 2
    backward = stage.compulsory({"T": T, "n": n, "C": C}, "bf16", "backward")
    assert backward.read_bytes == forward.read_bytes + T * n * C * 2
    assert backward.write_bytes == forward.read_bytes
    both = stage.compulsory({"T": T, "n": n, "C": C}, "bf16", "forward_backward")
    assert both.total_bytes == forward.total_bytes + backward.total_bytes


def test_the_papers_table_2_for_the_plain_residual_and_the_fused_write():
    catalogue = discover(ROOT / "kernels")
    C, n = 2560, 4
    residual = catalogue.stage("mhc/residual").contract.compulsory({"T": 1, "C": C}, "bf16")
    assert (residual.read_bytes, residual.write_bytes) == (2 * C * 2, C * 2)
    write = catalogue.stage("mhc/post_res").contract.compulsory({"T": 1, "n": n, "C": C}, "bf16")
    assert write.read_bytes - (n + n * n) * 4 == (n + 1) * C * 2
    assert write.write_bytes == n * C * 2


def test_a_stage_without_streams_has_one_dtype():
    fixed = Stage(("T",), {"x": Tensor("T", "fp32")}, {"y": Tensor("T", "fp32")}, {}, "nowhere")
    streams = Stage(("T",), {"x": Tensor("T")}, {"y": Tensor("T", "fp32")}, {}, "nowhere")
    assert fixed.dtypes == ("fp32",)
    assert streams.dtypes == ("bf16", "fp16", "fp32")


def test_an_output_takes_its_own_tolerance_or_the_common_one():
    own, common = Tolerance(1, 2), Tolerance(3, 4)
    stage = Stage(("T",), {}, {}, {"fp32": {"y": own, "*": common}, "bf16": {"y": own}}, "nowhere")
    assert stage.tolerance("fp32", "y") == own
    assert stage.tolerance("fp32", "z") == common
    with pytest.raises(KeyError):
        stage.tolerance("bf16", "z")


@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), float("inf")])
def test_a_tolerance_is_finite_and_above_zero(bad):
    with pytest.raises(ValueError, match="finite number above 0"):
        Tolerance(bad, 1)
    with pytest.raises(ValueError, match="finite number above 0"):
        Tolerance(1, bad)


@pytest.mark.parametrize("bad", [-1e-6, float("nan"), float("inf")])
def test_an_absolute_allowance_is_finite_and_not_below_zero(bad):
    with pytest.raises(ValueError, match="finite number of at least 0"):
        Tolerance(1, 1, bad)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"dims": None}, "dims"),
        ({"dims": ()}, "dims"),
        ({"inputs": {"x": Tensor("T Q")}}, "none of the dims"),
        ({"outputs": {"y": Tensor("Q")}}, "none of the dims"),
        ({"params": {"x": 1}}, "both an input and a parameter"),
        ({"params": {"block": "L_r"}}, "block: 'L_r' names 'L_r', which is none of the dims"),
        ({"inputs": {"x": Tensor("T", values=Normal(std="s"))}}, "x: 's' names 's', which is none of the dims"),
        ({"outputs": {"y": Tensor("T", values=Normal(std="s"))}}, "y: 's' names 's', which is none of the dims"),
        ({"observed": ("z",)}, "observed: z is no output"),
        ({"supports": {"T": 5}}, "supports"),
        ({"supports": {"Q": (5,)}}, "supports"),
    ],
)
def test_a_contract_that_contradicts_itself_is_refused(change, told):
    parts = {
        "dims": ("T",),
        "inputs": {"x": Tensor("T")},
        "outputs": {"y": Tensor("T")},
        "tolerances": {},
        "source": "?",
    }
    with pytest.raises(ValueError, match=told):
        Stage(**{**parts, **change})
