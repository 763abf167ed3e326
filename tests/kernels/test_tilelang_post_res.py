"""The TileLang residual mix, run as C code, against fp64."""

import pytest
import torch
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
    ("change", "message"),
    [
        (lambda x, f, p, r: (x[:, :3], f, p, r), "n must be one of 1, 2, 4, 8"),
        (lambda x, f, p, r: (x.double(), f, p, r), "x must be one of bfloat16, float16, float32"),
        (lambda x, f, p, r: (x, f.half(), p, r), "f must be float32"),
        (lambda x, f, p, r: (x, f[:, 1:], p, r), r"f must have shape \[3, 100\]"),
        (lambda x, f, p, r: (x, f, p[:2], r), r"h_post must have shape \[3, 4\]"),
        (lambda x, f, p, r: (x, f, p, r.transpose(1, 2)), "h_res must be contiguous"),
        (lambda x, f, p, r: (x, f, p, r.to("meta")), "h_res is on meta"),
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
