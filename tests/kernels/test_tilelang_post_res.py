"""The TileLang residual mix, run as C code, against fp64."""

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
from perflab.measure.tile_kernel import NotExpressible

MODULE = load("mhc/post_res/tilelang_row_block")
SHAPES = [(1, 7), (2, 1281), (4, 100), (8, 36)]


@pytest.fixture(autouse=True)
def _empty_memory_is_nan():
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    yield
    torch.use_deterministic_algorithms(False)


def inputs(tokens, n, C, dtype=torch.float32):
    """H_res is far from symmetric, so that its transpose does not pass."""
    streams = torch.randn(tokens, n, C).to(dtype), torch.randn(tokens, C).to(dtype)
    return *streams, 2 * torch.rand(tokens, n), torch.randn(tokens, n, n)


def reference(x, f, h_post, h_res):
    mixed = torch.einsum("tij,tjc->tic", h_res.double(), x.double())
    return mixed + h_post.double()[:, :, None] * f.double()[:, None]


@pytest.mark.parametrize(("n", "C"), SHAPES)
def test_agrees_with_fp64_for_every_token_count(n, C):
    for tokens in TOKENS:
        given = inputs(tokens, n, C)
        assert relative_l2(MODULE.post_res(*given), reference(*given)) <= RELATIVE_L2[torch.float32]


def test_fp16_streams_are_accumulated_in_fp32():
    given = inputs(129, 4, 100, torch.float16)
    y = MODULE.post_res(*given)
    assert y.dtype == torch.float16
    assert relative_l2(y, reference(*given)) <= RELATIVE_L2[torch.float16]


def test_bf16_is_not_expressible_in_c():
    with pytest.raises(NotExpressible, match="no bf16 type"):
        MODULE.post_res(*inputs(3, 4, 100, torch.bfloat16))


def test_a_bad_token_stays_alone_and_a_zero_token_leaves_the_update():
    x, f, h_post, h_res = inputs(4, 4, 100)
    clean = MODULE.post_res(x, f, h_post, h_res)
    x[1], f[2], x[3] = torch.nan, torch.inf, 0
    y = MODULE.post_res(x, f, h_post, h_res)
    assert torch.equal(y[0], clean[0])
    assert y[1].isnan().all() and y[2].isinf().all()
    assert torch.equal(y[3], h_post[3, :, None] * f[3])


def test_runs_agree_bit_for_bit():
    given = inputs(129, 4, 100)
    assert torch.equal(MODULE.post_res(*given), MODULE.post_res(*given))


@pytest.mark.parametrize(
    ("T", "n", "C", "dtype"),
    [
        *[(T, 4, 100, torch.float32) for T in TOKENS],
        *[(3, n, 257, torch.float32) for n in (1, 2, 8)],
        *[(2, 4, C, torch.float32) for C in (1, 7168)],
        (5, 4, 264, torch.float16),
    ],
)
def test_gradients_against_fp64(T, n, C, dtype):
    given = inputs(T, n, C, dtype)
    cotangents = cotangents_of(MODULE.post_res, given)
    found = gradients(MODULE.post_res, given, cotangents)
    for one, gradient, want in zip(given, found, reference_gradients(reference, given, cotangents), strict=True):
        assert gradient.dtype == one.dtype
        assert relative_l2(gradient, want) <= RELATIVE_L2[one.dtype]


def test_backward_in_every_setting():
    assert_backward_in_every_setting(MODULE.post_res, inputs(5, 4, 72))


def test_gradients_keep_tokens_apart_and_have_the_same_bits_again():
    given = inputs(9, 4, 100)
    cotangents = cotangents_of(MODULE.post_res, given)
    for poisoned in range(len(given)):
        assert_tokens_apart(lambda *some: gradients(MODULE.post_res, some, cotangents), given, poisoned=[poisoned])
    assert_same(gradients(MODULE.post_res, given, cotangents), gradients(MODULE.post_res, given, cotangents))


def test_strided_inputs():
    x, f, h_post, h_res = inputs(5, 4, 100)
    strided = h_res.transpose(1, 2).contiguous().transpose(1, 2)
    assert_same(MODULE.post_res(x, f, h_post, strided), MODULE.post_res(x, f, h_post, h_res))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, f, p, r: (x[:, :3], f, p, r), "n in 1, 2, 4, 8"),
        (lambda x, f, p, r: (x.double(), f, p, r), "bf16, fp16 or fp32"),
        (lambda x, f, p, r: (x, f.half(), p, r), "f: expected .* torch.float32"),
        (lambda x, f, p, r: (x, f[:, 1:], p, r), r"f: expected \[3, 100\]"),
        (lambda x, f, p, r: (x, f, p[:2], r), r"h_post: expected \[3, 4\]"),
        (lambda x, f, p, r: (x, f, p, r[:, :3]), r"h_res: expected \[3, 4, 4\]"),
        (lambda x, f, p, r: (x, f, p, r.to("meta")), "on cpu; got .* on meta"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    with pytest.raises(ValueError, match=message):
        MODULE.post_res(*change(*inputs(3, 4, 100)))


def test_offsets_are_64_bits_wide():
    source, _ = cuda_source(MODULE.mix(4, 2560, "bfloat16"))
    assert "(int64_t)blockIdx.x) * (int64_t)10240" in source


@needs_nvcc
@pytest.mark.parametrize(("C", "dtype"), [(2560, "bfloat16"), (1920, "float32")])
def test_each_byte_is_moved_once_in_16_byte_accesses(C, dtype):
    """Four streams, the update, the token's gains and mixing matrix; four rows stored.."""
    assert global_accesses(MODULE.mix(4, C, dtype)) == {("ld", 16): 4 + 1 + 1 + 4, ("st", 16): 4}


@needs_nvcc
@pytest.mark.parametrize(("C", "dtype"), [(2560, "bfloat16"), (1920, "float32")])
def test_backward_moves_each_byte_once_in_16_byte_accesses(C, dtype):
    """Four cotangents, four streams, the update, the token's gains and matrix; dx, df, and a thread's share of dh."""
    accesses = global_accesses(MODULE.mix_backward(4, C, dtype, (True,) * 4))
    assert accesses == {("ld", 16): 4 + 4 + 1 + 1 + 4, ("st", 16): 4 + 1, ("st", 4): 2}
