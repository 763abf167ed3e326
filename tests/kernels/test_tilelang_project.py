"""The TileLang projection, run as C code, against fp64.

The C target's matrix product is fp32's: what tensor cores round off is seen on a GPU only.
"""

import pytest
import torch
from gradient_cases import (
    assert_backward_in_every_setting,
    assert_tokens_apart,
    cotangents_of,
    gradients,
    reference_gradients,
)
from tilelang_cases import KERNELS, TOKENS, needs_nvcc, relative_l2

from perflab.catalogue import load_module
from perflab.measure.compile_report import compile_for, cuda_source
from perflab.measure.tile_kernel import NotExpressible

MODULE = load_module(KERNELS / "mhc/project/tilelang_split_k.py")
BACKWARD = load_module(KERNELS / "mhc/project/_tilelang_backward.py")
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
        (lambda x, phi: (x[:, :3], phi), r"x: expected \[T, n, C\] with n in 1, 2, 4, 8 .* got \[3, 3, 96\]"),
        (lambda x, phi: (x.double(), phi), "x: expected .* got .* torch.float64"),
        (lambda x, phi: (x, phi.half()), "phi: expected .* got .* torch.float16"),
        (lambda x, phi: (x, phi[1:]), r"phi: expected \[384, 24\] .* got \[383, 24\]"),
        (lambda x, phi: (x, phi.to("meta")), "phi: expected .* on cpu; got .* on meta"),
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


@pytest.mark.parametrize(
    ("n", "C", "dtype", "tokens"),
    [
        (4, 96, torch.float32, TOKENS),
        (4, 130, torch.float16, (1, 129)),
        (1, 7, torch.float32, (3,)),
        (2, 333, torch.float32, (37,)),
        (8, 36, torch.float32, (129,)),
    ],
)
def test_gradients_agree_with_fp64(n, C, dtype, tokens):
    for count in tokens:
        x, phi = inputs(count, n, C, dtype)
        cotangents = cotangents_of(MODULE.project, (x, phi))
        dx, dphi = gradients(MODULE.project, (x, phi), cotangents)
        if count == 0:
            assert dx.shape == x.shape and not dphi.any()
            continue
        dx_64, dphi_64 = reference_gradients(reference, (x, phi), cotangents)
        assert (dx.dtype, dphi.dtype) == (dtype, torch.float32)
        assert relative_l2(dx, dx_64) <= (3e-4 if dtype == torch.float16 else 1e-6)
        assert relative_l2(dphi, dphi_64) <= 1e-6


def test_backward_in_every_setting():
    assert_backward_in_every_setting(MODULE.project, inputs(37, 4, 96))


def test_gradients_keep_tokens_apart():
    x, phi = inputs(37, 4, 96)
    cotangents = cotangents_of(MODULE.project, (x, phi))
    assert_tokens_apart(lambda *given: gradients(MODULE.project, given, cotangents)[0], (x, phi), poisoned=[0])


def test_ranges_of_tokens_cover_every_step_and_fill_one_wave():
    for steps in (1, 7, 8, 512, 4096):
        for blocks in (1, 20, 200):
            ranges, length = BACKWARD.split_tokens(steps, blocks, 132)
            assert (ranges - 1) * length < steps <= ranges * length
            assert ranges == 1 or (ranges * blocks <= 132 and length >= 8)


def test_backward_rereads_and_parts_are_a_tenth_of_the_compulsory_bytes():
    """n = 4, C = 2560, bf16, T = 8192: what column blocks and ranges of tokens read again or write in between."""
    T, n, C, K, stream, fp32 = 8192, 4, 2560, 24, 2, 4
    blocks = -(-C // BACKWARD.backward_width(n, C, "bfloat16"))
    ranges, _ = BACKWARD.split_tokens(T // BACKWARD.STEP, blocks, 132)
    x, phi, dm, r = T * n * C * stream, n * C * K * fp32, T * K * fp32, T * fp32
    compulsory = 2 * x + 2 * phi + dm + 2 * r
    moved = 2 * x + ranges * phi + blocks * (dm + 2 * r) + 2 * ranges * phi + phi
    assert compulsory < moved <= 1.10 * compulsory


def test_backward_copies_each_stream_once_by_tma_and_multiplies_on_tensor_cores():
    source, _ = cuda_source(BACKWARD.differentiate(4, 2560, "bfloat16", True, True, False, False))
    assert source.count("tma_load(x_desc") == 4
    assert source.count("tma_store(dx_desc") == 4
    assert "kTensorFloat32" in source


@needs_nvcc
@pytest.mark.parametrize(("C", "dtype"), [(2560, torch.bfloat16), (1920, torch.float32)])
def test_backward_does_not_spill(C, dtype):
    x, phi = torch.empty(4096, 4, C, dtype=dtype, requires_grad=True), torch.empty(4 * C, 24, requires_grad=True)
    cotangents = torch.empty(4096, 24), torch.empty(4096)
    reports = compile_for(lambda: torch.autograd.grad(MODULE.project(x, phi), (x, phi), cotangents))
    assert {report.name for report in reports} >= {"differentiate_kernel", "add_parts_kernel"}
    assert all(report.spill_bytes == 0 for report in reports)
