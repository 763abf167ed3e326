"""Column and row normalisation, interpreted."""

import pytest
import torch
from triton_cases import assert_near, assert_same, assert_tokens_apart, implementations, normal

pytestmark = pytest.mark.parametrize("sinkhorn", implementations("sinkhorn"))

BOUNDS = (1e-6, 1e-5)


def reference(logits, iterations=20):
    # Columns first: at large and asymmetric logits the other order is far away.
    M = logits.double().exp()
    for _ in range(iterations):
        M = M / M.sum(-2, keepdim=True)
        M = M / M.sum(-1, keepdim=True)
    return M


@pytest.mark.parametrize("std", [1.0, 3.0, 8.0])
@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_against_fp64(sinkhorn, n, std):
    logits = normal(67, n, n, std=std)
    h_res = sinkhorn(logits)
    assert h_res.dtype == torch.float32
    assert_near(h_res, reference(logits), *BOUNDS)
    assert (h_res.double().sum(-1) - 1).abs().max() < 5e-7


@pytest.mark.parametrize("T", [0, 1, 3, 127, 129])
def test_any_number_of_tokens(sinkhorn, T):
    logits = normal(T, 4, 4, std=3.0)
    assert_near(sinkhorn(logits), reference(logits), *BOUNDS)


@pytest.mark.parametrize("iterations", [1, 2, 19])
def test_iterations(sinkhorn, iterations):
    logits = normal(16, 4, 4, std=3.0)
    assert_near(sinkhorn(logits, iterations=iterations), reference(logits, iterations), *BOUNDS)


def test_beyond_the_range_of_exp(sinkhorn):
    # exp overflows fp32 from 89 on. One added number per column leaves the result as it was.
    logits = normal(16, 4, 4, std=3.0)
    shifted = logits + torch.tensor([500.0, -500.0, 90.0, 0.0])
    assert_near(sinkhorn(shifted), reference(shifted), *BOUNDS)


def test_zero_token(sinkhorn):
    logits = normal(3, 4, 4)
    logits[1] = 0
    assert sinkhorn(logits)[1].eq(0.25).all()


def test_same_bits_again(sinkhorn):
    logits = normal(130, 4, 4, std=3.0)
    assert_same(sinkhorn(logits), sinkhorn(logits))


@pytest.mark.parametrize("n", [2, 4, 8])
def test_tokens_are_apart(sinkhorn, n):
    assert_tokens_apart(sinkhorn, (normal(9, n, n),), poisoned=[0])


def test_strided_input(sinkhorn):
    logits = normal(5, 4, 4, std=3.0)
    strided = logits.transpose(1, 2).contiguous().transpose(1, 2)
    assert not strided.is_contiguous()
    assert_same(sinkhorn(strided), sinkhorn(logits))


@pytest.mark.parametrize(
    ("logits", "iterations", "said"),
    [
        (torch.ones(3, 3, 3), 20, "n in 1, 2, 4, 8"),
        (torch.ones(3, 4, 2), 20, r"logits: expected \[T, n, n\]"),
        (torch.ones(4, 4), 20, r"logits: expected \[T, n, n\]"),
        (torch.ones(3, 4, 4, dtype=torch.bfloat16), 20, "torch.float32"),
        (torch.ones(3, 4, 4), 0, "iterations: expected at least 1"),
    ],
)
def test_refuses(sinkhorn, logits, iterations, said):
    with pytest.raises(ValueError, match=said):
        sinkhorn(logits, iterations=iterations)
