"""Column and row normalisation, interpreted."""

import pytest
import torch
from triton_cases import (
    assert_backward_in_every_setting,
    assert_near,
    assert_same,
    assert_tokens_apart,
    cotangents_of,
    gradients,
    implementations,
    normal,
    reference_gradients,
)

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


def assert_gradient_near(sinkhorn, logits, iterations=20, bounds=(1e-6, 1e-5)):
    def of_logits(function):
        return lambda given: function(given, iterations=iterations)

    dh_res = cotangents_of(of_logits(sinkhorn), (logits,))
    (dlogits,) = gradients(of_logits(sinkhorn), (logits,), dh_res)
    assert dlogits.dtype == torch.float32
    assert_near(dlogits, reference_gradients(of_logits(reference), (logits,), dh_res)[0], *bounds)


@pytest.mark.parametrize(("std", "bounds"), [(1.0, (1e-5, 1e-4)), (3.0, (1e-5, 1e-4)), (8.0, (1e-3, 1e-2))])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_gradients_against_fp64(sinkhorn, n, std, bounds):
    assert_gradient_near(sinkhorn, normal(67, n, n, std=std), bounds=bounds)


@pytest.mark.parametrize("iterations", [1, 2, 19, 49])
def test_gradients_of_iterations(sinkhorn, iterations):
    assert_gradient_near(sinkhorn, normal(16, 4, 4, std=3.0), iterations, (1e-5, 1e-4))


@pytest.mark.parametrize("T", [0, 1, 3, 129])
def test_gradients_of_any_number_of_tokens(sinkhorn, T):
    assert_gradient_near(sinkhorn, normal(T, 4, 4), bounds=(1e-5, 1e-4))


def test_gradient_of_a_scalar_is_zero(sinkhorn):
    logits = normal(5, 1, 1)
    assert gradients(sinkhorn, (logits,), [torch.ones_like(logits)])[0].abs().max() <= 2e-7


def test_gradients_of_equal_and_of_extreme_logits(sinkhorn):
    logits = normal(3, 4, 4)
    logits[0] = 0.7
    logits[1] = torch.where(normal(4, 4, seed=3) > 0, 60.0, -60.0)
    # A row of -60 alone would leave the range of fp32 beside columns of 60.
    logits[1].fill_diagonal_(60.0)
    assert_gradient_near(sinkhorn, logits, bounds=(1e-5, 1e-4))
    assert_gradient_near(sinkhorn, logits[:1], bounds=(1e-5, 1e-4))
    assert_gradient_near(sinkhorn, logits[1:2], bounds=(1e-5, 1e-4))


def test_backward_in_every_setting(sinkhorn):
    assert_backward_in_every_setting(sinkhorn, (normal(5, 4, 4, std=3.0),))


@pytest.mark.parametrize("n", [2, 4, 8])
def test_gradients_keep_tokens_apart(sinkhorn, n):
    logits = normal(9, n, n)
    dh_res = cotangents_of(sinkhorn, (logits,))
    assert_tokens_apart(lambda given: gradients(sinkhorn, (given,), dh_res)[0], (logits,), poisoned=[0])


def test_gradients_have_the_same_bits_again(sinkhorn):
    logits = normal(40, 4, 4, std=3.0)
    dh_res = cotangents_of(sinkhorn, (logits,))
    assert_same(gradients(sinkhorn, (logits,), dh_res), gradients(sinkhorn, (logits,), dh_res))


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
