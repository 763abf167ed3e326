"""A decoder on Triton's kernels, interpreted: loss and gradients against fp64, and no bit changed by recomputing."""

from pathlib import Path

import torch
from triton_cases import assert_same

from perflab.catalogue import load_module

STEP = Path(__file__).parents[3] / "kernels" / "mhc" / "step"
SHAPE = {
    "layers": 2, "C": 16, "ffn": 8, "routed": 4, "active": 2, "shared": 1, "heads": 2, "head_dim": 8, "kv_rank": 16,
    "rope": 4, "vocabulary": 256, "S": 5, "B": 1, "n": 4,
}  # fmt: skip


def gradients(stem):
    training = load_module(STEP / f"{stem}.py").step(SHAPE, "fp32", "cpu", 0)
    state = training.state()
    for name in ("sites.a", "sites.b"):
        state[name].add_(0.5 * torch.randn(state[name].shape, generator=torch.Generator().manual_seed(1)))
    training.load(state)
    tokens = training.batch(0)
    return state, tokens, training.gradients(tokens)


def test_loss_and_every_gradient_against_fp64():
    state, tokens, found = gradients("mhc_triton")
    expected = load_module(STEP / "reference.py").step(state, tokens, SHAPE, "mhc")
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert (gradient.double() - expected[name]).norm() <= 1e-5 * expected[name].norm(), name


def test_recomputation_changes_no_bit():
    assert_same(gradients("mhc_triton")[2].values(), gradients("mhc_triton_recompute")[2].values())
