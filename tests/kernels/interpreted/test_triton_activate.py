"""Scaling and sigmoids, interpreted."""

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


@pytest.mark.parametrize(("T", "n"), [*[(T, 4) for T in (1, 3, 127, 129, 4096)], *[(70, n) for n in (1, 2, 8)]])
def test_gradients_against_fp64(activate, T, n):
    inputs = draw(T, n)
    cotangents = cotangents_of(activate, inputs)
    found, refs = gradients(activate, inputs, cotangents), reference_gradients(reference, inputs, cotangents)
    for gradient, ref in zip(found, refs, strict=True):
        assert gradient.dtype == torch.float32
        assert_near(gradient, ref, *BOUNDS)


def test_gradients_of_no_tokens(activate):
    inputs = draw(0, 4)
    dm, dr, da, db = gradients(activate, inputs, cotangents_of(activate, inputs))
    assert dm.shape == (0, 24)
    assert dr.shape == (0,)
    # A sum of nothing is 0, not unwritten memory.
    assert da.equal(torch.zeros(3))
    assert db.equal(torch.zeros(24))


@pytest.mark.parametrize(("T", "n"), [(1000, 4), (2100, 1)])
@pytest.mark.parametrize("most", [2, 256])
def test_sums_over_tokens_in_several_blocks(activate, monkeypatch, T, n, most):
    # With two blocks at most, each takes several tiles.
    monkeypatch.setitem(activate.__globals__, "PARTS", most)
    m, r, a, b = draw(T, n)
    # Terms of one sign: the relative error of a sum that cancels would say nothing.
    inputs = m.abs(), r, a, b
    cotangents = [t.abs() for t in cotangents_of(activate, inputs)]
    found, refs = gradients(activate, inputs, cotangents), reference_gradients(reference, inputs, cotangents)
    for gradient, ref in zip(found, refs, strict=True):
        assert_near(gradient, ref, *BOUNDS)


def test_gradients_where_sigmoids_saturate(activate):
    m, r, a, b = draw(40, 4, std=100.0)
    cotangents = cotangents_of(activate, (m, r, a, b))
    dm, *_ = gradients(activate, (m, r, a, b), cotangents)
    # s (1 - s) would be 0 from h = 17 on in fp32, and from 37 on in fp64.
    scale = a.double()[0] / r.double()[:, None]
    h = m[:, :4] * scale + b[:4]
    dm_64 = cotangents[0] * scale * h.sigmoid() * (-h).sigmoid()
    tails = dm_64.abs() > 1e-30
    assert (h[tails] > 40).any()
    assert (h[tails] < -40).any()
    # h is rounded at 100, so e^h is not known better.
    assert ((dm[:, :4] - dm_64).abs() <= 1e-4 * dm_64.abs())[tails].all()


def test_backward_in_every_setting(activate):
    assert_backward_in_every_setting(activate, draw(70, 4))


def test_gradients_keep_tokens_apart(activate):
    m, r, a, b = draw(9, 4)
    cotangents = cotangents_of(activate, (m, r, a, b))
    assert_tokens_apart(lambda *given: gradients(activate, (*given, a, b), cotangents)[:2], (m, r), poisoned=[0, 1])


def test_gradients_have_the_same_bits_again(activate):
    inputs = draw(300, 4)
    cotangents = cotangents_of(activate, inputs)
    assert_same(gradients(activate, inputs, cotangents), gradients(activate, inputs, cotangents))


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
