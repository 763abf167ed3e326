"""The TileLang projection, run as C code, against fp64.

The C target's matrix product is fp32's: what tensor cores round off is seen on a GPU only.
"""

import pytest
import torch
from tilelang_cases import TOKENS, load, relative_l2

from perflab.measure.compile_report import cuda_source
from perflab.measure.tile_kernel import NotExpressible

MODULE = load("mhc/project/tilelang_split_k")
RELATIVE_L2 = 2e-6


@pytest.fixture(autouse=True)
def _empty_memory_is_nan():
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    yield
    torch.use_deterministic_algorithms(False)


def inputs(tokens, n, C, dtype=torch.float32):
    phi = torch.randn(n * C, n * n + 2 * n)
    return torch.randn(tokens, n, C).to(dtype), (phi.view(torch.int32) & ~0x1FFF).view(torch.float32)


def reference(x, phi, eps=1e-20):
    flat = x.double().flatten(1)
    return flat @ phi.double(), (flat.square().mean(1) + eps).sqrt()


@pytest.mark.parametrize(
    ("n", "C", "dtype"),
    [
        (1, 7, torch.float32),
        (2, 333, torch.float32),
        (4, 96, torch.float32),
        (8, 36, torch.float32),
        (4, 96, torch.float16),
    ],
)
def test_agrees_with_fp64_for_every_token_count(n, C, dtype):
    for tokens in TOKENS:
        given = inputs(tokens, n, C, dtype)
        for out, want in zip(MODULE.project(*given), reference(*given), strict=True):
            assert out.dtype == torch.float32
            assert relative_l2(out, want) <= RELATIVE_L2


def test_bf16_is_not_expressible_in_c():
    with pytest.raises(NotExpressible, match="no bf16 type"):
        MODULE.project(*inputs(3, 4, 96, torch.bfloat16))


def test_a_bad_token_stays_alone_and_a_zero_token_has_the_norm_of_eps():
    x, phi = inputs(4, 4, 96)
    clean = MODULE.project(x, phi)
    x[1], x[2], x[3] = torch.nan, torch.inf, 0
    m, r = MODULE.project(x, phi)
    assert torch.equal(m[0], clean[0][0]) and torch.equal(r[0], clean[1][0])
    assert m[1].isnan().all() and r[1].isnan() and r[2].isinf()
    assert (m[3] == 0).all() and float(r[3]) == pytest.approx(1e-10)


def test_eps_is_added_to_the_mean_square():
    x, phi = inputs(3, 4, 96)
    _, r = MODULE.project(x, phi, eps=0.5)
    assert relative_l2(r, reference(x, phi, 0.5)[1]) <= RELATIVE_L2


def test_runs_agree_bit_for_bit():
    given = inputs(129, 4, 96)
    assert all(map(torch.equal, MODULE.project(*given), MODULE.project(*given)))


@pytest.mark.parametrize("slots", [1, 132, 264])
@pytest.mark.parametrize("tokens", [0, 1, 129, 4096, 65536])
@pytest.mark.parametrize("steps", [1, 7, 320, 896])
def test_slices_cover_every_step_and_none_is_empty(tokens, steps, slots):
    slices, length = MODULE.split(tokens, steps, slots)
    assert (slices - 1) * length < steps <= slices * length


@pytest.mark.parametrize(("tokens", "least"), [(1, 40), (4096, 0.95), (16384, 0.95), (40960, 0.9), (65536, 0.95)])
def test_slices_fill_the_waves_of_blocks(tokens, least):
    """At C = 2560 on Hopper: few tokens reach the shortest slices, many waste no wave."""
    slots, blocks = 264, -(-tokens // MODULE.TOKENS)
    slices, _ = MODULE.split(tokens, 320, slots)
    waves = -(-blocks * slices // slots)
    assert slices >= least if tokens == 1 else blocks * slices / (waves * slots) >= least


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, phi: (x[:, :3], phi), "n must be one of 1, 2, 4, 8"),
        (lambda x, phi: (x.double(), phi), "x must be one of bfloat16, float16, float32"),
        (lambda x, phi: (x, phi.half()), "phi must be float32"),
        (lambda x, phi: (x, phi[1:]), r"phi must have shape \[384, 24\]"),
        (lambda x, phi: (x, phi.to("meta")), "phi is on meta"),
        (lambda x, phi: (x.transpose(1, 2).contiguous().transpose(1, 2), phi), "x must be contiguous"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    with pytest.raises(ValueError, match=message):
        MODULE.project(*change(*inputs(3, 4, 96)))


def test_cuda_source_copies_x_once_by_tma_and_multiplies_on_tensor_cores():
    source, _ = cuda_source(MODULE.multiply_slices(10240, 24, "bfloat16"))
    assert source.count("tma_load(x_desc") == 1
    assert source.count("tma_load(phi_desc") == 1
    assert "kTensorFloat32" in source
