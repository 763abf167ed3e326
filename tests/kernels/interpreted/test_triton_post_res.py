"""The mixed streams merged with the layer's output, interpreted."""

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

pytestmark = pytest.mark.parametrize("post_res", implementations("post_res"))


def draw(T, n, C, dtype="bf16"):
    # Asymmetric weights: near the identity a matrix and its transpose look alike.
    return (
        normal(T, n, C, dtype=DTYPES[dtype]),
        normal(T, C, dtype=DTYPES[dtype], seed=1),
        2 * normal(T, n, seed=2).sigmoid(),
        normal(T, n, n, seed=3),
    )


def reference(x, f, h_post, h_res):
    x, f, h_post, h_res = (tensor.double() for tensor in (x, f, h_post, h_res))
    return h_res @ x + h_post[:, :, None] * f[:, None, :]


@pytest.mark.parametrize(
    ("T", "n", "C", "dtype"),
    [
        *[(T, 4, 130, "bf16") for T in (0, 1, 3, 127, 129)],
        *[(3, n, 257, dtype) for n in (1, 2, 4, 8) for dtype in DTYPES],
        *[(2, 4, C, "bf16") for C in (1, 5, 1280, 1920, 7168)],
        (129, 4, 2560, "bf16"),
    ],
)
def test_against_fp64(post_res, T, n, C, dtype):
    inputs = draw(T, n, C, dtype)
    y = post_res(*inputs)
    assert y.dtype == DTYPES[dtype]
    assert_near(y, reference(*inputs), *STREAM_BOUNDS[dtype])


@pytest.mark.parametrize(
    ("T", "n", "C", "dtype"),
    [
        *[(T, 4, 130, "bf16") for T in (0, 1, 3, 129)],
        *[(3, n, 257, dtype) for n in (1, 2, 4, 8) for dtype in DTYPES],
        # Enough tokens that the rounding of few elements is near its mean.
        *[(200, 4, C, "bf16") for C in (1, 5)],
        *[(2, 4, C, "bf16") for C in (1280, 7168)],
    ],
)
def test_gradients_against_fp64(post_res, T, n, C, dtype):
    inputs = draw(T, n, C, dtype)
    dy = cotangents_of(post_res, inputs)
    found, refs = gradients(post_res, inputs, dy), reference_gradients(reference, inputs, dy)
    assert [gradient.dtype for gradient in found] == [tensor.dtype for tensor in inputs]
    for gradient, ref in zip(found[:2], refs[:2], strict=True):
        assert_near(gradient, ref, *STREAM_BOUNDS[dtype])
    for gradient, ref in zip(found[2:], refs[2:], strict=True):
        assert_near(gradient, ref, 1e-6, 4e-6)


def test_backward_in_every_setting(post_res):
    assert_backward_in_every_setting(post_res, draw(5, 4, 72, "fp32"))


@pytest.mark.parametrize("poisoned", [[0], [1], [2, 3]])
def test_gradients_keep_tokens_apart(post_res, poisoned):
    inputs = draw(9, 4, 300)
    dy = cotangents_of(post_res, inputs)
    assert_tokens_apart(lambda *given: gradients(post_res, given, dy), inputs, poisoned)


def test_gradients_have_the_same_bits_again(post_res):
    inputs = draw(9, 4, 300)
    dy = cotangents_of(post_res, inputs)
    assert_same(gradients(post_res, inputs, dy), gradients(post_res, inputs, dy))


def test_same_bits_again(post_res):
    inputs = draw(9, 4, 300)
    assert_same(post_res(*inputs), post_res(*inputs))


@pytest.mark.parametrize("poisoned", [[0], [1], [2, 3]])
def test_tokens_are_apart(post_res, poisoned):
    assert_tokens_apart(post_res, draw(9, 4, 300), poisoned)


def test_zero_token(post_res):
    x, f, h_post, h_res = draw(3, 4, 40)
    x[1], f[1] = 0, 0
    assert post_res(x, f, h_post, h_res)[1].eq(0).all()


def test_strided_inputs(post_res):
    x, f, h_post, h_res = draw(5, 4, 64)
    strided = (
        x.transpose(0, 2).contiguous().transpose(0, 2),
        f.t().contiguous().t(),
        h_post.t().contiguous().t(),
        h_res.transpose(1, 2).contiguous().transpose(1, 2),
    )
    assert not any(tensor.is_contiguous() for tensor in strided)
    assert_same(post_res(*strided), post_res(x, f, h_post, h_res))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": torch.ones(3, 32)}, r"x: expected \[T, n, C\]"),
        ({"x": torch.ones(3, 3, 8)}, "n in 1, 2, 4, 8"),
        ({"x": torch.ones(3, 4, 8, dtype=torch.int32)}, "bf16, fp16 or fp32"),
        ({"f": torch.ones(3, 9)}, r"f: expected \[3, 8\]"),
        ({"f": torch.ones(3, 8, dtype=torch.bfloat16)}, "f: expected .* torch.float32"),
        ({"h_post": torch.ones(3, 8)}, r"h_post: expected \[3, 4\]"),
        ({"h_res": torch.ones(3, 4, 4, dtype=torch.float16)}, "h_res: expected .* torch.float32"),
        ({"h_res": torch.ones(3, 4, 4, device="meta")}, "on cpu; got .* on meta"),
    ],
)
def test_refuses(post_res, change, said):
    good = {"x": torch.ones(3, 4, 8), "f": torch.ones(3, 8), "h_post": torch.ones(3, 4), "h_res": torch.ones(3, 4, 4)}
    with pytest.raises(ValueError, match=said):
        post_res(**(good | change))
