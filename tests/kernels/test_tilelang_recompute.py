"""The TileLang recomputation of many sites, run as C code, against the chain of single kernels."""

import pytest
import torch
from tilelang_cases import KERNELS, needs_nvcc

from perflab.catalogue import load_module
from perflab.measure.compile_report import compile_for, cuda_source
from perflab.measure.tile_kernel import capture

MODULE = load_module(KERNELS / "mhc/recompute/tilelang_multi_site.py")
PRE = load_module(KERNELS / "mhc/pre/tilelang_row_block.py").pre
POST_RES = load_module(KERNELS / "mhc/post_res/tilelang_row_block.py").post_res


@pytest.fixture(autouse=True)
def _empty_memory_is_nan():
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    yield
    torch.use_deterministic_algorithms(False)


def inputs(sites, tokens, n, C, dtype=torch.float32):
    x, f = torch.randn(tokens, n, C).to(dtype), torch.randn(sites - 1, tokens, C).to(dtype)
    h_res = torch.rand(sites - 1, tokens, n, n).softmax(3)
    return x, f, torch.rand(sites, tokens, n), 2 * torch.rand(sites - 1, tokens, n), h_res


def chain(x, f, h_pre, h_post, h_res):
    """Streams and layer inputs by one launch per step."""
    xs, us = [], []
    for site in range(len(h_pre)):
        us.append(PRE(x, h_pre[site]))
        if site + 1 < len(h_pre):
            x = POST_RES(x, f[site], h_post[site], h_res[site])
            xs.append(x)
    return xs, us


@pytest.mark.parametrize(
    ("sites", "n", "C", "dtype"),
    [
        (3, 4, 100, torch.float32),
        (3, 4, 100, torch.float16),
        (2, 1, 7, torch.float32),
        (2, 1, 7, torch.float16),
        (2, 2, 1281, torch.float32),
        (2, 2, 1281, torch.float16),
        (2, 8, 36, torch.float32),
        (2, 8, 36, torch.float16),
        (1, 4, 100, torch.float32),
    ],
)
def test_every_bit_is_the_chains(sites, n, C, dtype):
    for tokens in (0, 1, 33):
        given = inputs(sites, tokens, n, C, dtype)
        x, *stacks = given
        xs, us = MODULE.recompute(*given)
        for found in ((xs, us), MODULE.rebuild(x, *(list(stack) for stack in stacks))):
            for one, want in zip(found, chain(*given), strict=True):
                assert len(one) == len(want)
                assert all(map(torch.equal, one, want))


def test_agrees_with_fp64():
    x, f, h_pre, h_post, h_res = inputs(3, 33, 4, 100)
    xs, us = MODULE.recompute(x, f, h_pre, h_post, h_res)
    x, f, h_pre, h_post, h_res = (given.double() for given in (x, f, h_pre, h_post, h_res))
    for site in range(3):
        u = torch.einsum("tn,tnc->tc", h_pre[site], x)
        assert (us[site] - u).norm() <= 1e-6 * u.norm()
        if site < 2:
            x = torch.einsum("tij,tjc->tic", h_res[site], x) + h_post[site, :, :, None] * f[site, :, None]
            assert (xs[site] - x).norm() <= 1e-6 * x.norm()


def test_a_bad_token_stays_alone():
    given = inputs(3, 4, 4, 100)
    clean = MODULE.recompute(*given)
    given[0][1], given[1][0, 2] = torch.nan, torch.inf
    for one, two in zip(MODULE.recompute(*given), clean, strict=True):
        assert torch.equal(one[:, [0, 3]], two[:, [0, 3]])
        assert not one[1:, 1:3].isfinite().any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, f, p, o, r: (x[:, :3].contiguous(), f, p, o, r), "n must be one of 1, 2, 4, 8"),
        (lambda x, f, p, o, r: (x, f, p[:0], o, r), "at least one site"),
        (lambda x, f, p, o, r: (x, f, p[:1], o, r), r"f must have shape \[0, 3, 100\]"),
        (lambda x, f, p, o, r: (x, f[:1], p, o, r), r"f must have shape \[2, 3, 100\]"),
        (lambda x, f, p, o, r: (x, f.half(), p, o, r), "f must be float32"),
        (lambda x, f, p, o, r: (x, f, p, o.to("meta"), r), "h_post is on meta"),
        (lambda x, f, p, o, r: (x.double(), f, p, o, r), "x must be one of"),
    ],
)
def test_refuses_what_it_cannot_do(change, message):
    with pytest.raises(ValueError, match=message):
        MODULE.recompute(*change(*inputs(3, 3, 4, 100)))


def test_refuses_sequences_that_do_not_fit():
    x, f, h_pre, h_post, h_res = inputs(3, 3, 4, 100)
    with pytest.raises(ValueError, match="got 3, 1, 2, 2"):
        MODULE.rebuild(x, f[:1], h_pre, h_post, h_res)


def test_all_sites_are_one_launch():
    x, *stacks = inputs(4, 3, 4, 100)
    for call in (MODULE.recompute, MODULE.rebuild):
        with capture() as launches:
            call(x, *stacks)
        assert len(launches) == 1


def test_offsets_are_64_bits_wide():
    source, _ = cuda_source(MODULE.walk(3, 4, 2560, "bfloat16", True))
    assert "(int64_t)blockIdx.x) * (int64_t)10240" in source


@needs_nvcc
@pytest.mark.parametrize(("n", "C", "dtype"), [(4, 2560, torch.bfloat16), (8, 1920, torch.float32)])
def test_nothing_spills(n, C, dtype):
    given = [torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for tensor in inputs(6, 1, n, C, dtype)]
    for report in compile_for(lambda: MODULE.recompute(*given)):
        assert report.spill_bytes == 0
