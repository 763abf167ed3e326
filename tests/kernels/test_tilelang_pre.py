"""The TileLang weighted sum, run as C code, against fp64."""

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

MODULE = load("mhc/pre/tilelang_row_block")
SHAPES = [(1, 7), (2, 1281), (4, 100), (8, 36)]


@pytest.fixture(autouse=True)
def _empty_memory_is_nan():
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    yield
    torch.use_deterministic_algorithms(False)


def inputs(tokens, n, C, dtype=torch.float32):
    return torch.randn(tokens, n, C).to(dtype), torch.rand(tokens, n)


def reference(x, h_pre):
    return torch.einsum("tn,tnc->tc", h_pre.double(), x.double())


@pytest.mark.parametrize(("n", "C"), SHAPES)
def test_agrees_with_fp64_for_every_token_count(n, C):
    for tokens in TOKENS:
        x, h_pre = inputs(tokens, n, C)
        assert relative_l2(MODULE.pre(x, h_pre), reference(x, h_pre)) <= RELATIVE_L2[torch.float32]


def test_fp16_streams_are_accumulated_in_fp32():
    x, h_pre = inputs(129, 4, 100, torch.float16)
    u = MODULE.pre(x, h_pre)
    assert u.dtype == torch.float16
    assert relative_l2(u, reference(x, h_pre)) <= RELATIVE_L2[torch.float16]


def test_bf16_is_not_expressible_in_c():
    with pytest.raises(NotExpressible, match="no bf16 type"):
        MODULE.pre(*inputs(3, 4, 100, torch.bfloat16))


def test_a_bad_token_stays_alone_and_a_zero_token_gives_zero():
    x, h_pre = inputs(5, 4, 100)
    clean = MODULE.pre(x, h_pre)
    x[1], x[3], x[4] = torch.nan, torch.inf, 0
    u = MODULE.pre(x, h_pre)
    assert torch.equal(u[[0, 2]], clean[[0, 2]])
    assert u[1].isnan().all() and u[3].isinf().all() and (u[4] == 0).all()


def test_runs_agree_bit_for_bit():
    x, h_pre = inputs(129, 4, 100)
    assert torch.equal(MODULE.pre(x, h_pre), MODULE.pre(x, h_pre))


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
    cotangents = cotangents_of(MODULE.pre, given)
    found = gradients(MODULE.pre, given, cotangents)
    for one, gradient, want in zip(given, found, reference_gradients(reference, given, cotangents), strict=True):
        assert gradient.dtype == one.dtype
        assert relative_l2(gradient, want) <= RELATIVE_L2[one.dtype]


def test_backward_in_every_setting():
    assert_backward_in_every_setting(MODULE.pre, inputs(5, 4, 72))


def test_gradients_keep_tokens_apart_and_have_the_same_bits_again():
    given = inputs(9, 4, 100)
    cotangents = cotangents_of(MODULE.pre, given)
    for poisoned in range(len(given)):
        assert_tokens_apart(lambda *some: gradients(MODULE.pre, some, cotangents), given, poisoned=[poisoned])
    assert_same(gradients(MODULE.pre, given, cotangents), gradients(MODULE.pre, given, cotangents))


def test_strided_inputs():
    x, h_pre = inputs(5, 4, 100)
    strided = x.transpose(0, 2).contiguous().transpose(0, 2)
    assert_same(MODULE.pre(strided, h_pre.T.contiguous().T), MODULE.pre(x, h_pre))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, h: (x[:, :3], h[:, :3]), "n in 1, 2, 4, 8"),
        (lambda x, h: (x[0], h), r"x: expected \[T, n, C\]"),
        (lambda x, h: (x.double(), h), "bf16, fp16 or fp32"),
        (lambda x, h: (x, h.half()), "h_pre: expected .* torch.float32"),
        (lambda x, h: (x, h[:2]), r"h_pre: expected \[3, 4\]"),
        (lambda x, h: (x, h.to("meta")), "on cpu; got .* on meta"),
        (lambda x, h: (x[..., :0], h), r"x: expected \[T, n, C\]"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    with pytest.raises(ValueError, match=message):
        MODULE.pre(*change(*inputs(3, 4, 100)))


def test_offsets_are_64_bits_wide():
    source, _ = cuda_source(MODULE.weighted_sum(4, 2560, "bfloat16"))
    assert "(int64_t)blockIdx.x) * (int64_t)10240" in source


@needs_nvcc
@pytest.mark.parametrize(("C", "dtype"), [(2560, "bfloat16"), (1920, "float32")])
def test_each_byte_is_moved_once_in_16_byte_accesses(C, dtype):
    """Four streams, the token's four weights; one store.."""
    assert global_accesses(MODULE.weighted_sum(4, C, dtype)) == {("ld", 16): 4 + 1, ("st", 16): 1}


@needs_nvcc
@pytest.mark.parametrize(("C", "dtype"), [(2560, "bfloat16"), (1920, "float32")])
def test_backward_moves_each_byte_once_in_16_byte_accesses(C, dtype):
    """The cotangent, four streams, the token's four weights; four rows stored, and what a thread stores of dh_pre."""
    accesses = global_accesses(MODULE.weighted_sum_backward(4, C, dtype, (True, True)))
    assert accesses == {("ld", 16): 1 + 4 + 1, ("st", 16): 4, ("st", 4): 1}
