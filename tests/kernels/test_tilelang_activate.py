"""The TileLang coefficients, run as C code, against fp64."""

import pytest
import torch
from gradient_cases import (
    assert_backward_in_every_setting,
    assert_same,
    assert_tokens_apart,
    cotangents_of,
    gradients,
    reference_gradients,
)
from tilelang_cases import RELATIVE_L2, TOKENS, global_accesses, load, needs_nvcc, relative_l2

from perflab.measure.compile_report import cuda_source

MODULE = load("mhc/activate/tilelang_element_rows")


@pytest.fixture(autouse=True)
def _empty_memory_is_nan():
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    yield
    torch.use_deterministic_algorithms(False)


def inputs(tokens, n, std=1.0):
    K = n * n + 2 * n
    return std * torch.randn(tokens, K), 0.5 + torch.rand(tokens), torch.tensor([0.5, 0.7, 1.3]), torch.randn(K)


def reference(m, r, a, b):
    n = {3: 1, 8: 2, 24: 4, 80: 8}[m.shape[1]]
    gates = a.double().repeat_interleave(torch.tensor([n, n, n * n]))
    h = m.double() * gates / r.double()[:, None] + b.double()
    return h[:, :n].sigmoid(), 2 * h[:, n : 2 * n].sigmoid(), h[:, 2 * n :].view(-1, n, n)


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_agrees_with_fp64_for_every_token_count_and_scale(n):
    for tokens in TOKENS:
        for std in (1, 8):
            given = inputs(tokens, n, std)
            for out, want in zip(MODULE.activate(*given), reference(*given), strict=True):
                assert relative_l2(out, want) <= RELATIVE_L2[torch.float32]


def test_saturates_without_nan_and_a_zero_token_gives_the_bias():
    m, r, a, b = inputs(3, 4)
    m[0], m[1], m[2], r[2] = 1e4, -1e4, 0, 1e-10
    h_pre, h_post, logits = MODULE.activate(m, r, a, b)
    assert (h_pre[0] == 1).all() and (h_pre[1] == 0).all()
    assert (h_post[0] == 2).all() and (h_post[1] == 0).all()
    assert torch.equal(logits[2].flatten(), b[8:])


def test_a_bad_token_stays_alone():
    m, r, a, b = inputs(4, 4)
    clean = MODULE.activate(m, r, a, b)
    m[1], r[3] = torch.nan, torch.nan
    for out, before in zip(MODULE.activate(m, r, a, b), clean, strict=True):
        assert torch.equal(out[[0, 2]], before[[0, 2]])
        assert out[[1, 3]].isnan().all()


def test_runs_agree_bit_for_bit():
    given = inputs(129, 4)
    assert all(map(torch.equal, MODULE.activate(*given), MODULE.activate(*given)))


@pytest.mark.parametrize("n", [1, 2, 4, 8])
@pytest.mark.parametrize("std", [1, 8])
def test_gradients_against_fp64(n, std):
    for tokens in (*TOKENS[1:], 9000):
        given = inputs(tokens, n, std)
        cotangents = cotangents_of(MODULE.activate, given)
        found = gradients(MODULE.activate, given, cotangents)
        for name, gradient, want in zip("mrab", found, reference_gradients(reference, given, cotangents), strict=True):
            # Of the few sums over all tokens, one may be small beside its terms.
            assert relative_l2(gradient, want) <= (1e-5 if name in "ab" else RELATIVE_L2[torch.float32]), name


def test_without_tokens_the_sums_over_tokens_are_zero():
    given = inputs(0, 4)
    dm, dr, da, db = gradients(MODULE.activate, given, cotangents_of(MODULE.activate, given))
    assert dm.shape == (0, 24) and dr.shape == (0,)
    assert (da == 0).all() and (db == 0).all()


def test_gradients_saturate_without_nan():
    m, r, a, b = inputs(3, 4)
    m[0], m[1], m[2], r[2] = 1e4, -1e4, 0, 1e-10
    cotangents = cotangents_of(MODULE.activate, (m, r, a, b))
    found = gradients(MODULE.activate, (m, r, a, b), cotangents)
    assert all(gradient.isfinite().all() for gradient in found)
    assert (found[0][:2, :8] == 0).all()


def test_backward_in_every_setting():
    assert_backward_in_every_setting(MODULE.activate, inputs(70, 4))


def test_gradients_keep_tokens_apart_and_have_the_same_bits_again():
    m, r, a, b = given = inputs(9, 4)
    cotangents = cotangents_of(MODULE.activate, given)
    for poisoned in ([0], [0, 1]):
        assert_tokens_apart(lambda *some: gradients(MODULE.activate, (*some, a, b), cotangents)[:2], (m, r), poisoned)
    assert_same(gradients(MODULE.activate, given, cotangents), gradients(MODULE.activate, given, cotangents))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m, r, a, b: (m[:, :15], r, a, b[:15]), "n in 1, 2, 4, 8"),
        (lambda m, r, a, b: (m.half(), r, a, b), "m: expected .* torch.float32"),
        (lambda m, r, a, b: (m, r[1:], a, b), r"r: expected \[3\]"),
        (lambda m, r, a, b: (m, r, a[:2], b), r"a: expected \[3\]"),
        (lambda m, r, a, b: (m, r, a, b.to("meta")), "on cpu; got .* on meta"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    with pytest.raises(ValueError, match=message):
        MODULE.activate(*change(*inputs(3, 4)))


def test_offsets_are_64_bits_wide():
    source, _ = cuda_source(MODULE.coefficients(4))
    assert "(int64_t)blockIdx.x) * (int64_t)1536" in source


@needs_nvcc
def test_coefficients_are_stored_16_bytes_at_a_time():
    accesses = global_accesses(MODULE.coefficients(4))
    # 64 tokens of 24 numbers by 64 threads of 4 numbers.
    assert accesses["st", 16] == 6 and set(accesses) == {("ld", 16), ("ld", 4), ("st", 16)}
