"""The TileLang read of a site, run as C code, against fp64."""

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
from tilelang_cases import KERNELS, needs_nvcc, relative_l2

from perflab import Unsupported
from perflab.catalogue import load_module
from perflab.measure.compile_report import compile_for, cuda_source
from perflab.measure.tile_kernel import NotExpressible, capture

MODULE = load_module(KERNELS / "mhc/read/tilelang_fused.py")
PRE = load_module(KERNELS / "mhc/pre/tilelang_row_block.py").pre


@pytest.fixture(autouse=True)
def _empty_memory_is_nan():
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    yield
    torch.use_deterministic_algorithms(False)


def inputs(tokens, n, C, dtype=torch.float32, std=1.0):
    K = n * n + 2 * n
    phi = 0.02 * torch.randn(n * C, K)
    phi = (phi.view(torch.int32) & ~0x1FFF).view(torch.float32)
    return torch.randn(tokens, n, C).to(dtype), phi, torch.rand(3) + 0.5, std * torch.randn(K)


def reference(x, phi, a, b, iterations=20):
    """u, h_post, h_res by the definition, in the inputs' precision."""
    n, flat = x.shape[1], x.flatten(1)
    r = (flat.square().mean(1, keepdim=True) + 1e-20).sqrt()
    h = a.repeat_interleave(torch.tensor([n, n, n * n])) * (flat @ phi) / r + b
    M = h[:, 2 * n :].view(-1, n, n).exp()
    for _ in range(iterations):
        M = M / M.sum(1, keepdim=True)
        M = M / M.sum(2, keepdim=True)
    return torch.einsum("tn,tnc->tc", h[:, :n].sigmoid(), x), 2 * h[:, n : 2 * n].sigmoid(), M


def through(x, phi, a, b):
    """`read_through` without the weights that have no gradient."""
    x, u, _, h_post, h_res = MODULE.read_through(x, phi, a, b)
    return x, u, h_post, h_res


CASES = [
    (4, 100, torch.float32, (0, 1, 33, 129)),
    (4, 130, torch.float16, (33,)),
    (1, 20, torch.float32, (5,)),
    (2, 37, torch.float32, (70,)),
    (8, 36, torch.float32, (33,)),
]


@pytest.mark.parametrize(("n", "C", "dtype", "counts"), CASES)
def test_agrees_with_fp64(n, C, dtype, counts):
    for tokens in counts:
        given = inputs(tokens, n, C, dtype)
        want = reference(*(one.double() for one in given))
        found = MODULE.read(*given)
        assert [one.dtype for one in found] == [dtype, torch.float32, torch.float32]
        for one, ref, bound in zip(found, want, (3e-4 if dtype == torch.float16 else 1e-6, 1e-6, 1e-6), strict=True):
            assert relative_l2(one, ref) <= bound


@pytest.mark.parametrize(("n", "C", "dtype", "counts"), CASES)
def test_gradients_agree_with_fp64(n, C, dtype, counts):
    for tokens in counts:
        given = inputs(tokens, n, C, dtype)
        cotangents = cotangents_of(through, given)
        found = gradients(through, given, cotangents)
        assert [one.dtype for one in found] == [dtype, *[torch.float32] * 3]
        if tokens == 0:
            assert found[0].shape == given[0].shape and not any(one.any() for one in found[1:])
            continue
        want = reference_gradients(lambda x, *rest: (x, *reference(x, *rest)), given, cotangents)
        for one, ref, bound in zip(
            found, want, (3e-4 if dtype == torch.float16 else 1e-6, 1e-5, 1e-5, 1e-5), strict=True
        ):
            assert relative_l2(one, ref) <= bound


@pytest.mark.parametrize("std", [3, 8])
def test_gradients_of_steep_logits_agree_with_fp64(std):
    given = inputs(33, 4, 100, std=std)
    cotangents = cotangents_of(MODULE.read, given)
    want = reference_gradients(reference, given, cotangents)
    for one, ref in zip(gradients(MODULE.read, given, cotangents), want, strict=True):
        assert relative_l2(one, ref) <= 1e-5


def test_u_has_the_bits_of_pre():
    x, *rest = inputs(33, 4, 100)
    _, u, h_pre, h_post, h_res = MODULE.read_through(x, *rest)
    assert torch.equal(u, PRE(x, h_pre))
    assert_same((u, h_post, h_res), MODULE.read(x, *rest))


def test_weights_of_the_read_have_no_gradient():
    x, *rest = inputs(5, 4, 100)
    again, u, h_pre, _, _ = MODULE.read_through(x.requires_grad_(), *rest)
    assert again.requires_grad and u.requires_grad and not h_pre.requires_grad


def test_backward_in_every_setting():
    assert_backward_in_every_setting(through, inputs(33, 2, 24))


def test_gradients_keep_tokens_apart():
    given = inputs(37, 2, 24)
    cotangents = cotangents_of(through, given)
    assert_tokens_apart(lambda *changed: gradients(through, changed, cotangents)[0], given, poisoned=[0])


def test_iterations_are_counted():
    given = inputs(33, 2, 24, std=3)
    for iterations in (1, 2):
        want = reference(*(one.double() for one in given), iterations=iterations)
        cotangents = cotangents_of(MODULE.read, given)

        def read(*changed, iterations=iterations):
            return MODULE.read(*changed, iterations=iterations)

        assert relative_l2(read(*given)[2], want[2]) <= 1e-6
        ref = reference_gradients(lambda *g, i=iterations: reference(*g, iterations=i), given, cotangents)
        for one, two in zip(gradients(read, given, cotangents), ref, strict=True):
            assert relative_l2(one, two) <= 1e-5


def test_bf16_is_not_expressible_in_c():
    with pytest.raises(NotExpressible, match="no bf16 type"):
        MODULE.read(*inputs(3, 4, 100, torch.bfloat16))


@pytest.mark.parametrize(
    ("change", "options", "error", "message"),
    [
        (lambda x, phi, a, b: (x[:, :3], phi, a, b), {}, ValueError, "x: expected"),
        (lambda x, phi, a, b: (x, phi[1:], a, b), {}, ValueError, "phi: expected"),
        (lambda x, phi, a, b: (x, phi, a[:2], b), {}, ValueError, r"a: expected \[3\] .* got \[2\]"),
        (lambda x, phi, a, b: (x, phi, a, b.half()), {}, ValueError, "b: expected .* got .* torch.float16"),
        (lambda x, phi, a, b: (x, phi, a, b.to("meta")), {}, ValueError, "b: expected .* got .* meta"),
        (lambda *given: given, {"iterations": 0}, ValueError, "iterations must be at least 1"),
        (lambda *given: given, {"iterations": 1000}, Unsupported, "shared memory"),
    ],
)
def test_refuses_what_it_cannot_do(change, options, error, message):
    with pytest.raises(error, match=message):
        MODULE.read(*change(*inputs(3, 4, 100)), **options)


def compiled(n, C, dtype):
    """A call of forward and backward at a training shape, whose memory nobody touches."""
    x, phi, a, b = (
        torch.empty(shape, dtype=kind, requires_grad=True)
        for shape, kind in (((8192, n, C), dtype), *((s, torch.float32) for s in inputs_shapes(n, C)))
    )

    def call():
        outputs = through(x, phi, a, b)
        return torch.autograd.grad(outputs, (x, phi, a, b), [torch.empty_like(one) for one in outputs])

    return call


def inputs_shapes(n, C):
    K = n * n + 2 * n
    return (n * C, K), (3,), (K,)


def test_three_launches_forward_and_five_backward():
    with capture() as launches:
        compiled(4, 2560, torch.bfloat16)()
    assert [kernel.build.__name__ for kernel in launches] == [
        *("multiply_slices", "coefficients", "weighted_sum"),
        *("weighted_sum_backward", "undo", "add_blocks", "differentiate", "add_parts"),
    ]


def test_offsets_are_64_bits_wide():
    source, _ = cuda_source(MODULE.weighted_sum_backward(4, 2560, "bfloat16", (False, True)))
    assert "(int64_t)blockIdx.x) * (int64_t)10240" in source


@needs_nvcc
@pytest.mark.parametrize(("n", "C", "dtype"), [(4, 2560, torch.bfloat16), (8, 1920, torch.float32)])
def test_nothing_spills(n, C, dtype):
    assert all(report.spill_bytes == 0 for report in compile_for(compiled(n, C, dtype)))
