"""The module for a model on Triton's kernels, interpreted: eager's loss and gradients, and no bit changed by recomputing."""

from pathlib import Path

import torch
from torch import nn
from triton_cases import assert_same

import perflab

MODULE = perflab.load("mhc/hyper_connection", workspace=Path(__file__).parents[3])


def connection(toolkit, block):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(16, 16), nn.ReLU(inplace=True)) for _ in range(3)]
    module = MODULE.HyperConnection(layers, 4, 16, toolkit, recompute_block=block)
    with torch.no_grad():
        module.a.fill_(0.7)
        module.b.add_(torch.randn(module.b.shape))
    return module


def step(module):
    x = torch.randn(2, 3, 4, 16, generator=torch.Generator().manual_seed(1)).requires_grad_()
    y = module(x)
    return [y, *torch.autograd.grad(y.square().sum(), [x, *module.parameters()])]


def test_a_checkpoint_of_eager_gives_the_same_output_and_gradients():
    eager, triton = connection("eager", None), connection("triton", None)
    with torch.no_grad():
        for parameter in triton.parameters():
            parameter.zero_()
    triton.load_state_dict(eager.state_dict())
    for one, two in zip(step(eager), step(triton), strict=True):
        torch.testing.assert_close(one, two, rtol=2e-4, atol=2e-5)


def test_recomputation_changes_no_bit():
    kept = step(connection("triton", None))
    for block in (1, 3):
        assert_same(kept, step(connection("triton", block)))
