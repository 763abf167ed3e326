"""Gains by Triton's Sinkhorn over all sites at once, interpreted."""

import pytest
import torch
from triton_cases import STAGES, assert_near, implementations, normal

from perflab.catalogue import load_module


@pytest.mark.parametrize("gain", implementations("gain"))
@pytest.mark.parametrize(("L", "T"), [(1, 3), (7, 5), (2, 129)])
@pytest.mark.parametrize("iterations", [1, 20])
def test_against_fp64(gain, L, T, iterations):
    logits = normal(L, T, 4, 4, std=8.0)
    reference = load_module(STAGES / "gain/reference.py").gain(logits.double(), iterations)
    for result, expected in zip(gain(logits, iterations), reference, strict=True):
        assert result.dtype == torch.float32
        assert_near(result, expected, 5e-6, 1e-5)
