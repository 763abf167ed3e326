"""The weighted sum of the streams, interpreted."""

import pytest
import torch
from triton_cases import (
    DTYPES,
    STREAM_BOUNDS,
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

pytestmark = pytest.mark.parametrize("pre", implementations("pre"))


def draw(T, n, C, dtype="bf16"):
    return normal(T, n, C, dtype=DTYPES[dtype]), normal(T, n, seed=1).sigmoid()


def reference(x, h_pre):
    return (h_pre.double()[:, :, None] * x.double()).sum(1)


@pytest.mark.parametrize(
    ("T", "n", "C", "dtype"),
    [
        *[(T, 4, 130, "bf16") for T in (0, 1, 3, 127, 129)],
        *[(3, n, 257, dtype) for n in (1, 2, 4, 8) for dtype in DTYPES],
        *[(2, 4, C, "bf16") for C in (1, 5, 1280, 1920, 7168)],
        (129, 4, 2560, "bf16"),
    ],
)
def test_against_fp64(pre, T, n, C, dtype):
    x, h_pre = draw(T, n, C, dtype)
    u = pre(x, h_pre)
    assert u.dtype == x.dtype
    assert_near(u, reference(x, h_pre), *STREAM_BOUNDS[dtype])


@pytest.mark.parametrize(
    ("T", "n", "C", "dtype"),
    [
        *[(T, 4, 130, "bf16") for T in (0, 1, 3, 129)],
        *[(3, n, 257, dtype) for n in (1, 2, 4, 8) for dtype in DTYPES],
        *[(40, 4, C, "bf16") for C in (1, 5)],
        *[(2, 4, C, "bf16") for C in (1280, 7168)],
    ],
)
def test_gradients_against_fp64(pre, T, n, C, dtype):
    inputs = draw(T, n, C, dtype)
    du = cotangents_of(pre, inputs)
    dx, dh_pre = gradients(pre, inputs, du)
    dx_64, dh_pre_64 = reference_gradients(reference, inputs, du)
    assert_near(dx, dx_64, *STREAM_BOUNDS[dtype])
    assert_near(dh_pre, dh_pre_64, 1e-6, 4e-6)


def test_backward_in_every_setting(pre):
    assert_backward_in_every_setting(pre, draw(5, 4, 72, "fp32"))


def test_gradients_keep_tokens_apart(pre):
    inputs = draw(9, 4, 300)
    du = cotangents_of(pre, inputs)
    assert_tokens_apart(lambda *given: gradients(pre, given, du), inputs, poisoned=[0])


def test_same_bits_again(pre):
    inputs = draw(9, 4, 300)
    assert_same(pre(*inputs), pre(*inputs))


def test_tokens_are_apart(pre):
    assert_tokens_apart(pre, draw(9, 4, 300), poisoned=[0])
    assert_tokens_apart(pre, draw(9, 4, 300), poisoned=[1])


def test_zero_token(pre):
    x, h_pre = draw(3, 4, 40)
    x[1] = 0
    assert pre(x, h_pre)[1].eq(0).all()


def test_strided_inputs(pre):
    x, h_pre = draw(5, 4, 64)
    strided = x.transpose(0, 2).contiguous().transpose(0, 2)
    assert not strided.is_contiguous()
    assert_same(pre(strided, h_pre.t().contiguous().t()), pre(x, h_pre))


@pytest.mark.parametrize(
    ("x", "h_pre", "said"),
    [
        (torch.ones(3, 4), torch.ones(3, 4), r"x: expected \[T, n, C\]"),
        (torch.ones(3, 3, 8), torch.ones(3, 3), "n in 1, 2, 4, 8"),
        (torch.ones(3, 4, 0), torch.ones(3, 4), r"x: expected \[T, n, C\]"),
        (torch.ones(3, 4, 8, dtype=torch.float64), torch.ones(3, 4), "bf16, fp16 or fp32"),
        (torch.ones(3, 4, 8), torch.ones(4, 3), r"h_pre: expected \[3, 4\]"),
        (torch.ones(3, 4, 8), torch.ones(3, 4, dtype=torch.bfloat16), "h_pre: expected .* torch.float32"),
        (torch.ones(3, 4, 8), torch.ones(3, 4, device="meta"), "on cpu; got .* on meta"),
    ],
)
def test_refuses(pre, x, h_pre, said):
    with pytest.raises(ValueError, match=said):
        pre(x, h_pre)
