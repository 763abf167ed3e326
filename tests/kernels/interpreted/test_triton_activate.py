"""Scaling and sigmoids, interpreted."""

import pytest
import torch
from triton_cases import assert_near, assert_same, assert_tokens_apart, implementations, normal

pytestmark = pytest.mark.parametrize("activate", implementations("activate"))

BOUNDS = (1e-6, 4e-6)


def draw(T, n, std=2.0):
    K = n * n + 2 * n
    return normal(T, K, std=std), normal(T, seed=1).exp(), torch.tensor([0.6, -1.3, 1.9]), normal(K, seed=2)


def reference(m, r, a, b):
    m, r, a, b = (tensor.double() for tensor in (m, r, a, b))
    n = round((1 + m.shape[1]) ** 0.5) - 1
    h = m / r[:, None] * a.repeat_interleave(torch.tensor([n, n, n * n])) + b
    return h[:, :n].sigmoid(), 2 * h[:, n : 2 * n].sigmoid(), h[:, 2 * n :].reshape(-1, n, n)


@pytest.mark.parametrize(("T", "n"), [*[(T, 4) for T in (0, 1, 3, 127, 129)], *[(70, n) for n in (1, 2, 8)], (4096, 4)])
def test_against_fp64(activate, T, n):
    inputs = draw(T, n)
    for out, ref in zip(activate(*inputs), reference(*inputs), strict=True):
        assert out.dtype == torch.float32
        assert_near(out, ref, *BOUNDS)


def test_saturates(activate):
    inputs = draw(40, 4, std=100.0)
    for out, ref in zip(activate(*inputs), reference(*inputs), strict=True):
        # Absolute for the sigmoids' tails, whose relative error grows with the exponent.
        assert_near(out, ref, 1e-6, 4e-6)


def test_zero_token(activate):
    m, r, a, b = draw(3, 4)
    m[1], r[1] = 0, 1e-10
    h_pre, h_post, logits = activate(m, r, a, b)
    assert_near(h_pre[1], b[:4].double().sigmoid(), *BOUNDS)
    assert_near(h_post[1], 2 * b[4:8].double().sigmoid(), *BOUNDS)
    assert logits[1].flatten().equal(b[8:])


def test_same_bits_again(activate):
    inputs = draw(130, 4)
    assert_same(activate(*inputs), activate(*inputs))


def test_tokens_are_apart(activate):
    m, r, a, b = draw(9, 4)

    def of_tokens(m, r):
        return activate(m, r, a, b)

    assert_tokens_apart(of_tokens, (m, r), poisoned=[0, 1])


def test_strided_inputs(activate):
    m, r, a, b = draw(5, 4)
    strided = m.t().contiguous().t(), torch.stack([r, r], 1)[:, 0], torch.stack([a, a], 1)[:, 0], b
    assert not any(tensor.is_contiguous() for tensor in strided[:3])
    assert_same(activate(*strided), activate(m, r, a, b))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"m": torch.ones(3, 15)}, "n in 1, 2, 4, 8"),
        ({"m": torch.ones(24)}, r"m: expected \[T, n\*n \+ 2\*n\]"),
        ({"m": torch.ones(3, 24, dtype=torch.bfloat16)}, "m: expected .* torch.float32"),
        ({"r": torch.ones(3, 1)}, r"r: expected \[3\]"),
        ({"a": torch.ones(4)}, r"a: expected \[3\]"),
        ({"b": torch.ones(8)}, r"b: expected \[24\]"),
        ({"r": torch.ones(3, device="meta")}, "on cpu; got .* on meta"),
    ],
)
def test_refuses(activate, change, said):
    good = {"m": torch.ones(3, 24), "r": torch.ones(3), "a": torch.ones(3), "b": torch.ones(24)}
    with pytest.raises(ValueError, match=said):
        activate(**(good | change))
