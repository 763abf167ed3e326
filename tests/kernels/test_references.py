"""The references are what everything is compared with: their own gradients, against finite differences."""

import pytest
import torch

from perflab.catalogue import discover, load_module
from perflab.measure import passes
from tests.conftest import ROOT

STAGES = {name: entry for name, entry in discover(ROOT / "kernels").stages.items() if entry.contract.differentiable}
SMALL = {"T": 3, "n": 2, "C": 3, "L": 2, "L_r": 1}


@pytest.mark.parametrize("name", STAGES)
def test_gradients_agree_with_finite_differences(name):
    stage = STAGES[name]
    reference = getattr(load_module(stage.folder / "reference.py"), stage.function)
    shape = {dim: SMALL[dim] for dim in stage.contract.dims}
    given, _ = passes.draw(stage.contract, shape, ("fp32", "cpu"), "backward", 0)
    # The all-zero tokens that a contract may draw stand at the norm's kink, where a difference means nothing.
    leaves = [t.detach().double().add(0.3 * (t.numel() > 1)).requires_grad_(t.requires_grad) for t in given.values()]
    keywords = stage.contract.keywords(shape)
    assert torch.autograd.gradcheck(lambda *inputs: reference(*inputs, **keywords), leaves, eps=1e-6, atol=1e-6)
