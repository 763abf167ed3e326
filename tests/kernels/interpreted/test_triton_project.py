"""Projection and norm in one pass, interpreted."""

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

pytestmark = pytest.mark.parametrize("project", implementations("project"))

#: Products are exact and sums are fp32, whatever the dtype of the streams.
BOUNDS = (1e-6, 5e-6)


def tf32(tensor):
    """Rounded towards zero to the ten fraction bits of tf32."""
    return (tensor.view(torch.int32) & -8192).view(torch.float32)


def draw(T, n, C, dtype="bf16"):
    return normal(T, n, C, dtype=DTYPES[dtype]), tf32(normal(n * C, n * n + 2 * n, std=0.02, seed=1))


def reference(x, phi, eps=1e-20):
    vec = x.double().flatten(1)
    return vec @ phi.double(), (vec.square().mean(1) + eps).sqrt()


def check(project, x, phi, **params):
    results = project(x, phi, **params)
    for out, ref in zip(results, reference(x, phi, **params), strict=True):
        assert out.dtype == torch.float32
        assert_near(out, ref, *BOUNDS)
    return results


@pytest.mark.parametrize(
    ("T", "n", "C", "dtype"),
    [
        *[(T, 4, 130, "bf16") for T in (0, 1, 3, 127, 129)],
        *[(3, n, 257, dtype) for n in (1, 2, 4, 8) for dtype in DTYPES],
        *[(2, 4, C, "bf16") for C in (1, 5, 1280)],
        # Whole tiles of tokens, without splits and with many.
        (2048, 1, 8, "bf16"),
        (129, 4, 2560, "bf16"),
    ],
)
def test_against_fp64(project, T, n, C, dtype):
    check(project, *draw(T, n, C, dtype))


@pytest.mark.parametrize(
    ("T", "n", "C", "dtype"),
    [
        *[(T, 4, 130, "bf16") for T in (1, 3, 127, 129)],
        *[(3, n, 257, dtype) for n in (1, 2, 4, 8) for dtype in DTYPES],
        *[(40, 4, C, "bf16") for C in (1, 5)],
        (2, 4, 1280, "bf16"),
        # Several ranges of tokens, the last one shorter.
        (1100, 4, 20, "bf16"),
    ],
)
def test_gradients_against_fp64(project, T, n, C, dtype):
    inputs = draw(T, n, C, dtype)
    cotangents = cotangents_of(project, inputs)
    (dx, dphi), expected = (gradients(project, inputs, cotangents), reference_gradients(reference, inputs, cotangents))
    assert dx.dtype == DTYPES[dtype]
    assert_near(dx, expected[0], *STREAM_BOUNDS[dtype])
    assert_near(dphi, expected[1], *BOUNDS)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_of_phi_for_cotangents_with_all_their_bits(project, dtype):
    # Of one token, with x = 1: nothing averages out what a cotangent would lose.
    _, phi = draw(1, 4, 8)
    x, dm = torch.ones(1, 4, 8, dtype=DTYPES[dtype]), normal(1, 24, seed=3)
    _, dphi = gradients(project, (x, phi), (dm, torch.zeros(1)))
    assert_near(dphi, dm.double().expand(32, 24), 1.5e-7, 3e-7)


def test_gradients_of_no_tokens(project):
    inputs = draw(0, 4, 40)
    dx, dphi = gradients(project, inputs, cotangents_of(project, inputs))
    assert dx.shape == (0, 4, 40)
    assert dphi.eq(0).all()


def test_backward_in_every_setting(project):
    assert_backward_in_every_setting(project, draw(5, 4, 20, "fp32"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_keep_tokens_apart(project, dtype):
    x, phi = draw(9, 4, 300, dtype)
    dm, dr = cotangents_of(project, (x, phi))
    for poisoned in ([0], [1, 2]):
        assert_tokens_apart(lambda x, *given: gradients(project, (x, phi), given, frozen=(1,)), (x, dm, dr), poisoned)


@pytest.mark.parametrize("dtype", DTYPES)
def test_phi_of_any_magnitude(project, dtype):
    x, phi = draw(5, 4, 40, dtype)
    check(project, x, phi * 2.0**40)
    check(project, x, phi * 2.0**-60)
    # Beside a large column, a small one keeps its own accuracy.
    phi[:, 3] *= 2.0**-12
    m, _ = project(x, phi)
    assert_near(m[:, 3], reference(x, phi)[0][:, 3], *BOUNDS)


def test_zero_token_and_eps(project):
    x, phi = draw(3, 4, 40)
    x[1] = 0
    m, r = check(project, x, phi)
    assert m[1].eq(0).all()
    assert abs(r[1].item() / 1e-10 - 1) < 1e-6
    _, r = check(project, x, phi, eps=0.25)
    assert r[1].item() == 0.5


@pytest.mark.parametrize("T", [9, 130])
def test_same_bits_again(project, T):
    inputs = draw(T, 4, 300)
    assert_same(project(*inputs), project(*inputs))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tokens_are_apart(project, dtype):
    x, phi = draw(9, 4, 300, dtype)
    assert_tokens_apart(lambda x: project(x, phi), (x,), poisoned=[0])


def test_strided_inputs(project):
    x, phi = draw(5, 4, 64)
    strided = x.transpose(0, 2).contiguous().transpose(0, 2), phi.t().contiguous().t()
    assert not any(tensor.is_contiguous() for tensor in strided)
    assert_same(project(*strided), project(x, phi))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": torch.ones(3, 32)}, r"x: expected \[T, n, C\]"),
        ({"x": torch.ones(3, 3, 8)}, "n in 1, 2, 4, 8"),
        ({"x": torch.ones(3, 4, 8, dtype=torch.float64)}, "bf16, fp16 or fp32"),
        ({"phi": torch.ones(24, 32)}, r"phi: expected \[32, 24\]"),
        ({"phi": torch.ones(32, 24, dtype=torch.bfloat16)}, "phi: expected .* torch.float32"),
        ({"phi": torch.ones(32, 24, device="meta")}, "on cpu; got .* on meta"),
    ],
)
def test_refuses(project, change, said):
    with pytest.raises(ValueError, match=said):
        project(**({"x": torch.ones(3, 4, 8), "phi": torch.ones(32, 24)} | change))
