"""The interpreter's bf16 casts, against torch's; what kernels make of them is checked where they are interpreted."""

import numpy as np
import pytest
import torch

from perflab.measure.interpreter_bf16 import from_bf16, to_bf16


def as_bits(tensor):
    return tensor.view(torch.int16).numpy().view(np.uint16)


@pytest.mark.parametrize("scale", [1.0, 1e-40, 1e38])
def test_rounds_as_torch_does(scale):
    values = torch.randn(100_000, generator=torch.Generator().manual_seed(0)) * scale
    assert np.array_equal(to_bf16(values.numpy()), as_bits(values.bfloat16()))


def test_ties_carries_and_ends_of_the_range():
    # 1 + 2^-8 and 1 + 3 2^-8 lie half way; 2 - 2^-9 carries into the exponent; the largest fp32 rounds to infinity.
    values = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 2 - 2**-9, 3.4028235e38, float("inf"), -float("inf"), 0.0, -0.0])
    expected = torch.tensor([1.0, 1 + 2**-6, 2.0, float("inf"), float("inf"), -float("inf"), 0.0, -0.0])
    assert np.array_equal(from_bf16(to_bf16(values.numpy())), expected.numpy())
    assert np.array_equal(to_bf16(values.numpy()), as_bits(values.bfloat16()))


def test_nan_stays_nan_whatever_its_low_bits():
    values = np.array([0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(from_bf16(to_bf16(values))).all()


def test_every_bf16_comes_back():
    bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).reshape(256, 256)
    values = from_bf16(bits)
    back = to_bf16(values)
    assert np.array_equal(np.isnan(values), np.isnan(from_bf16(back)))
    assert np.array_equal(bits[~np.isnan(values)], back[~np.isnan(values)])
