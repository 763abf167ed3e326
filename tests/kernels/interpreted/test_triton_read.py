"""From the streams to the layer's input and the write's coefficients, fused, interpreted."""

import pytest
import torch
from triton_cases import (
    DTYPES,
    STAGES,
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

from perflab.catalogue import load_module

pytestmark = pytest.mark.parametrize("read", implementations("read"))

#: Of fp32 results: h's rounding, and for gradients that of a sum over tokens.
BOUNDS = (1e-6, 1e-5)


def tf32(tensor):
    """Rounded towards zero to the ten fraction bits of tf32."""
    return (tensor.view(torch.int32) & -8192).view(torch.float32)


def draw(T, n, C, dtype="fp32"):
    K = n * n + 2 * n
    phi = tf32(normal(n * C, K, std=0.02, seed=1))
    return normal(T, n, C, dtype=DTYPES[dtype]), phi, 1 + 0.3 * normal(3, seed=2).tanh(), normal(K, seed=3)


def reference(x, phi, a, b, iterations=20):
    n, vec = x.shape[1], x.flatten(1)
    gates = torch.cat([a[0].expand(n), a[1].expand(n), a[2].expand(n * n)])
    h = vec @ phi * gates / vec.square().mean(1).add(1e-20).sqrt()[:, None] + b
    matrix = h[:, 2 * n :].unflatten(1, (n, n)).exp()
    for _ in range(iterations):
        matrix = matrix / matrix.sum(1, keepdim=True)
        matrix = matrix / matrix.sum(2, keepdim=True)
    return (h[:, :n].sigmoid()[:, :, None] * x).sum(1), 2 * h[:, n : 2 * n].sigmoid(), matrix


@pytest.mark.parametrize(
    ("T", "n", "C", "dtype"),
    [
        *[(1, 4, 40, dtype) for dtype in DTYPES],
        *[(3, n, 257, "bf16") for n in (1, 2, 4, 8)],
        (33, 2, 5, "fp32"),
        (5, 4, 1280, "fp32"),
    ],
)
def test_results_and_gradients_against_fp64(read, T, n, C, dtype):
    inputs = draw(T, n, C, dtype)
    expected = reference(*(tensor.double() for tensor in inputs))
    u, h_post, h_res = read(*inputs)
    assert_near(u, expected[0], *STREAM_BOUNDS[dtype])
    assert_near(h_post, expected[1], *BOUNDS)
    assert_near(h_res, expected[2], *BOUNDS)
    cotangents = cotangents_of(read, inputs)
    dx, *others = gradients(read, inputs, cotangents)
    dx_64, *others_64 = reference_gradients(reference, inputs, cotangents)
    assert dx.dtype == DTYPES[dtype]
    assert_near(dx, dx_64, *STREAM_BOUNDS[dtype])
    for one, other in zip(others, others_64, strict=True):
        assert_near(one, other, *BOUNDS)


@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_iterations(read, iterations):
    inputs = draw(3, 2, 40)
    expected = reference(*(tensor.double() for tensor in inputs), iterations)
    assert_near(read(*inputs, iterations=iterations)[2], expected[2], *BOUNDS)
    cotangents = cotangents_of(read, inputs)
    ours = gradients(lambda *given: read(*given, iterations=iterations), inputs, cotangents)
    exact = reference_gradients(lambda *given: reference(*given, iterations), inputs, cotangents)
    for one, other in zip(ours, exact, strict=True):
        assert_near(one, other, *BOUNDS)


def test_no_tokens(read):
    inputs = draw(0, 2, 40)
    dx, *others = gradients(read, inputs, cotangents_of(read, inputs))
    assert dx.shape == (0, 2, 40)
    assert all(gradient.eq(0).all() for gradient in others)


def test_backward_in_every_setting(read):
    # Two iterations, because this runs some thirty times.
    assert_backward_in_every_setting(lambda *given: read(*given, iterations=2), draw(3, 2, 24))


def test_tokens_are_apart(read):
    x, phi, a, b = draw(9, 2, 72)
    assert_tokens_apart(lambda x: read(x, phi, a, b, iterations=2), (x,), [0])
    cotangents = cotangents_of(read, (x, phi, a, b))

    def gradient(x, *given):
        return gradients(lambda *inputs: read(*inputs, iterations=2), (x, phi, a, b), given, frozen=(1, 2, 3))

    assert_tokens_apart(gradient, (x, *cotangents), [0])
    assert_tokens_apart(gradient, (x, *cotangents), [1, 2, 3])


def test_weighted_sum_has_the_bits_of_pre(read):
    x, phi, a, b = draw(5, 2, 72, "bf16")
    _, u, h_pre, _, _ = through(read)(x, phi, a, b)
    pre = load_module(STAGES / "pre" / "triton_column_tiles.py").pre
    assert_same(u, pre(x, h_pre))


def through(read):
    """`read_through` of the file that `read` is from."""
    return read.__globals__["read_through"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_through_adds_what_x_gets_elsewhere(read, dtype):
    inputs = draw(3, 2, 40, dtype)
    x, u, h_pre, h_post, h_res = through(read)(*(tensor.requires_grad_() for tensor in inputs))
    assert_same((x, u, h_post, h_res), (inputs[0], *read(*inputs)))
    assert x.requires_grad
    assert not h_pre.requires_grad
    cotangents = [normal(*t.shape, dtype=t.dtype, seed=9 + i) for i, t in enumerate((x, u, h_post, h_res))]
    ours = torch.autograd.grad((x, u, h_post, h_res), inputs, cotangents)
    exact = reference_gradients(lambda x, *given: (x, *reference(x, *given)), inputs, cotangents)
    assert_near(ours[0], exact[0], *STREAM_BOUNDS[dtype])
    for one, other in zip(ours[1:], exact[1:], strict=True):
        assert_near(one, other, *BOUNDS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": torch.ones(3, 3, 8)}, "n in 1, 2, 4, 8"),
        ({"phi": torch.ones(24, 32)}, r"phi: expected \[32, 24\]"),
        ({"a": torch.ones(4)}, r"a: expected \[3\]"),
        ({"b": torch.ones(24, device="meta")}, "on cpu; got .* on meta"),
        ({"iterations": 0}, "at least 1"),
    ],
)
def test_refuses(read, change, said):
    given = {"x": torch.ones(3, 4, 8), "phi": torch.ones(32, 24), "a": torch.ones(3), "b": torch.ones(24)}
    for function in (read, through(read)):
        with pytest.raises(ValueError, match=said):
            function(**(given | change))
