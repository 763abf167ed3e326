"""Inputs: drawn as the contract says, the same for the same seed."""

import torch

from perflab import Normal, Stage, Tensor, Uniform
from perflab.measure.inputs import draw, empty, round_to_tf32

STAGE = Stage(
    dims=("T", "C"),
    inputs={
        "x": Tensor("T C", "stream", Normal(std=(1.0, 8.0))),
        "w": Tensor("T C", "fp32", Uniform(2.0, 3.0)),
        "phi": Tensor("C C", "tf32", Normal(std=0.5)),
    },
    outputs={},
    tolerances={},
    source="nowhere",
)
SHAPE = {"T": 4000, "C": 16}


def test_the_same_seed_gives_the_same_inputs_and_another_seed_others():
    first, again, other = (draw(STAGE, SHAPE, "bf16", "cpu", seed) for seed in (1, 1, 2))
    for name in first:
        assert torch.equal(first[name], again[name])
        assert not torch.equal(first[name], other[name])


def test_dtypes_ranges_and_scales_are_the_contracts():
    drawn = draw(STAGE, SHAPE, "bf16", "cpu", 0)
    assert [tensor.dtype for tensor in drawn.values()] == [torch.bfloat16, torch.float32, torch.float32]
    assert abs(drawn["x"][::2].float().std() - 1) < 0.05
    assert abs(drawn["x"][1::2].float().std() - 8) < 0.4
    assert drawn["w"].min() >= 2
    assert drawn["w"].max() < 3


def test_tf32_values_keep_ten_fraction_bits_and_are_the_nearest():
    values = torch.randn(10000)
    rounded = round_to_tf32(values)
    assert not (rounded.view(torch.int32) & 0x1FFF).any()
    spacing = 2.0 ** (torch.frexp(values).exponent.double() - 11)
    assert ((rounded.double() - values.double()).abs() <= spacing / 2).all()


def test_empty_inputs_have_the_same_kinds_and_take_no_memory_on_meta():
    drawn, hollow = draw(STAGE, SHAPE, "fp16", "cpu", 0), empty(STAGE, SHAPE, "fp16", "meta")
    assert {n: (t.shape, t.dtype) for n, t in drawn.items()} == {n: (t.shape, t.dtype) for n, t in hollow.items()}
    assert all(tensor.is_meta for tensor in hollow.values())
