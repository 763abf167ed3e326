"""The TileLang Sinkhorn-Knopp balance, run as C code, against fp64."""

import functools

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

from perflab import Unsupported
from perflab.measure.compile_report import cuda_source

MODULE = load("mhc/sinkhorn/tilelang_thread_per_token")
COLUMNS, ROWS = -2, -1


@pytest.fixture(autouse=True)
def _empty_memory_is_nan():
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    yield
    torch.use_deterministic_algorithms(False)


def reference(logits, iterations=20, order=(COLUMNS, ROWS)):
    M = logits.double().exp()
    for _ in range(iterations):
        for dim in order:
            M = M / M.sum(dim, keepdim=True)
    return M


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_agrees_with_fp64_for_every_token_count_and_scale(n):
    for tokens in TOKENS:
        for std in (1, 3, 8):
            logits = std * torch.randn(tokens, n, n)
            assert relative_l2(MODULE.sinkhorn(logits), reference(logits)) <= RELATIVE_L2[torch.float32]


@pytest.mark.parametrize("std", [1, 3, 8])
def test_the_tolerance_tells_the_plausible_mistakes_apart(std):
    logits = std * torch.randn(4096, 4, 4)
    right = reference(logits)
    for wrong in (reference(logits, order=(ROWS, COLUMNS)), reference(logits, iterations=19), right.transpose(1, 2)):
        assert relative_l2(wrong, right) > RELATIVE_L2[torch.float32]


def test_iterations_are_counted():
    logits = 3 * torch.randn(129, 4, 4)
    for iterations in (1, 2):
        out = MODULE.sinkhorn(logits, iterations=iterations)
        assert relative_l2(out, reference(logits, iterations)) <= RELATIVE_L2[torch.float32]


@pytest.mark.parametrize("heights", [(-300, 0, 300, 400), (0, 0, 0, -500), (0, -500, -500, -500)])
@pytest.mark.parametrize("dim", [COLUMNS, ROWS])
def test_rows_and_columns_far_above_or_below_the_others_neither_overflow_nor_vanish(heights, dim):
    heights = torch.tensor(heights, dtype=torch.float32)
    logits = torch.randint(-3, 4, (129, 4, 4)) + (heights[:, None] if dim == COLUMNS else heights)
    # The logits are whole, so fp32 holds them; a logarithm taken from hundreds still rounds in the fifth digit.
    assert relative_l2(MODULE.sinkhorn(logits), reference(logits)) <= 2e-5


def test_a_bad_token_stays_alone():
    logits = torch.randn(4, 4, 4)
    clean = MODULE.sinkhorn(logits)
    logits[1, 2, 3], logits[3, 0, 1] = torch.nan, torch.inf
    out = MODULE.sinkhorn(logits)
    assert torch.equal(out[[0, 2]], clean[[0, 2]])
    assert out[1].isnan().any() and out[3].isnan().any()


def test_runs_agree_bit_for_bit():
    logits = 3 * torch.randn(129, 4, 4)
    assert torch.equal(MODULE.sinkhorn(logits), MODULE.sinkhorn(logits))


@pytest.mark.parametrize("std", [1, 3, 8])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_gradients_against_fp64(n, std):
    for tokens in TOKENS:
        for iterations in (1, 2, 20):
            ours, theirs = (functools.partial(f, iterations=iterations) for f in (MODULE.sinkhorn, reference))
            given = (std * torch.randn(tokens, n, n),)
            cotangents = cotangents_of(ours, given)
            (found,), (want,) = gradients(ours, given, cotangents), reference_gradients(theirs, given, cotangents)
            # Over many tokens it is 3e-7; a gradient of one token may be small beside what it is the difference of.
            assert relative_l2(found, want) <= (4e-7 if tokens > 100 else 1e-5)


def test_gradients_where_logits_are_far_apart():
    logits = torch.randn(5, 4, 4)
    logits[2] = 60 * torch.randn(4, 4).sign()
    cotangents = cotangents_of(MODULE.sinkhorn, (logits,))
    (found,) = gradients(MODULE.sinkhorn, (logits,), cotangents)
    (want,) = reference_gradients(reference, (logits,), cotangents)
    for one, other in zip(found, want, strict=True):
        assert relative_l2(one, other) <= 2e-6


def test_a_single_stream_has_gradient_zero():
    (found,) = gradients(MODULE.sinkhorn, (torch.randn(33, 1, 1),), (torch.randn(33, 1, 1),))
    assert (found == 0).all()


def test_linearising_at_the_result_would_not_pass():
    logits, cotangent = 3 * torch.randn(129, 4, 4), torch.randn(129, 4, 4)
    (want,) = reference_gradients(reference, (logits,), (cotangent,))
    balanced = reference(logits).log().float()
    (wrong,) = reference_gradients(functools.partial(reference, iterations=1), (balanced,), (cotangent,))
    assert relative_l2(wrong, want) > 100 * RELATIVE_L2[torch.float32]


def test_backward_in_every_setting():
    assert_backward_in_every_setting(MODULE.sinkhorn, (torch.randn(5, 4, 4),))


def test_gradients_keep_tokens_apart_and_have_the_same_bits_again():
    given = (torch.randn(40, 4, 4),)
    cotangents = cotangents_of(MODULE.sinkhorn, given)
    assert_tokens_apart(lambda *some: gradients(MODULE.sinkhorn, some, cotangents), given, poisoned=[0])
    assert_same(gradients(MODULE.sinkhorn, given, cotangents), gradients(MODULE.sinkhorn, given, cotangents))


def test_backward_declines_iterations_that_do_not_fit():
    given = (torch.randn(3, 8, 8),)
    with pytest.raises(Unsupported, match="200 iterations at n = 8"):
        gradients(functools.partial(MODULE.sinkhorn, iterations=200), given, given)


@pytest.mark.parametrize(
    ("logits", "options", "message"),
    [
        (torch.zeros(3, 3, 3), {}, "n in 1, 2, 4, 8"),
        (torch.zeros(3, 4, 2), {}, r"logits: expected \[T, n, n\]"),
        (torch.zeros(4, 4), {}, r"logits: expected \[T, n, n\]"),
        (torch.zeros(3, 4, 4).half(), {}, "logits: expected torch.float32"),
        (torch.zeros(3, 4, 4), {"iterations": 0}, "iterations: expected at least 1"),
    ],
)
def test_refuses_what_it_cannot_do(logits, options, message):
    with pytest.raises(ValueError, match=message):
        MODULE.sinkhorn(logits, **options)


def test_offsets_are_64_bits_wide():
    source, _ = cuda_source(MODULE.balance(4, 20))
    assert "(int64_t)blockIdx.x) * (int64_t)1024" in source


@needs_nvcc
def test_each_byte_is_moved_once_in_16_byte_accesses():
    assert global_accesses(MODULE.balance(4, 20)) == {("ld", 16): 4, ("st", 16): 4}


@needs_nvcc
def test_backward_moves_each_byte_once_in_16_byte_accesses():
    assert global_accesses(MODULE.balance_backward(4, 20)) == {("ld", 16): 4 + 4, ("st", 16): 4}
