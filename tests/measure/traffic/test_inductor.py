"""Counts of compiled code against bytes worked out by hand, on the cpp backend."""

import pytest
import torch
from torch._inductor import config as inductor_config

from perflab.measure.traffic.inductor import NothingCompiled, count

# torch's own import of Inductor warns about torch's own TorchScript.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")

T, n, C = 8, 4, 32


@pytest.fixture(autouse=True)
def _one_process():
    with inductor_config.patch(compile_threads=1):
        yield


def _count(function, *args, **options):
    compiled = torch.compile(function, **options)
    return count(lambda: compiled(*args))


def _bytes(function, *args, **options):
    traffic = _count(function, *args, **options)
    return traffic.read_bytes, traffic.write_bytes, traffic.launches


def test_pointwise_and_reduction_fuse_into_one_kernel():
    x, h = torch.randn(T, n, C), torch.rand(T, n)
    traffic = _count(lambda x, h: (h[:, :, None] * x).sum(1), x, h)
    assert (traffic.read_bytes, traffic.write_bytes, traffic.launches) == ((T * n * C + T * n) * 4, T * C * 4, 1)
    assert traffic.source == "compiler"
    assert traffic.collector == f"inductor {torch.__version__} cpp"
    (kernel,) = traffic.detail["kernels"]
    assert "mul" in kernel["name"] and "sum" in kernel["name"]
    assert (kernel["read_bytes"], kernel["write_bytes"]) == (traffic.read_bytes, traffic.write_bytes)
    assert (traffic.detail["graphs"], traffic.detail["graph_breaks"]) == (1, 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtypes(dtype):
    x = torch.ones(T, C, dtype=dtype)
    assert _bytes(lambda x: x + x, x) == (T * C * dtype.itemsize, T * C * dtype.itemsize, 1)


def test_a_buffer_between_two_kernels_is_written_and_read():
    def normalised(x):
        return x * x.sum((1, 2)).sum()

    rows, x = T * 4, torch.randn(T, n, C)
    size = x.numel() * 4
    # rows, then their total, then the product: each sum needs the whole of the one before
    assert _bytes(normalised, x) == (size + rows + size + 4, rows + 4 + size, 3)


def test_an_input_that_a_kernel_visits_in_two_loops_is_counted_once():
    x = torch.randn(T, C)
    traffic = _count(lambda x: x - x.mean(-1, keepdim=True), x)
    row_means = T * 4  # stored by the kernel for its second loop
    assert (traffic.read_bytes, traffic.launches) == (T * C * 4, 1)
    assert traffic.write_bytes in (T * C * 4, T * C * 4 + row_means)


def test_in_place_costs_both_and_only_the_slice():
    def double(x):
        x.mul_(2)

    def bump(x):
        x[:, 1:3].add_(1)

    x = torch.randn(T, n, C)
    assert _bytes(double, x) == (T * n * C * 4, T * n * C * 4, 1)
    assert _bytes(bump, x) == (T * 2 * C * 4, T * 2 * C * 4, 1)


def test_an_overwritten_input_is_not_read():
    def overwrite(x, y):
        x.copy_(y)

    x, y = torch.randn(T, C), torch.randn(C)
    assert _bytes(overwrite, x, y) == (C * 4, T * C * 4, 1)


def test_slices_and_expanded_inputs():
    x, row = torch.randn(T, C), torch.randn(C)
    assert _bytes(lambda x: x[1:3, ::2] + 1, x) == (C * 4, C * 4, 1)
    assert _bytes(lambda x: x[:, :20] * x[:, 10:30], x) == (T * 30 * 4, T * 20 * 4, 1)
    assert _bytes(lambda x, row: x + row.expand(T, C), x, row) == ((T * C + C) * 4, T * C * 4, 1)


def test_views_cost_nothing():
    x = torch.randn(T, C)
    assert _bytes(lambda x: x.view(T * C)[3:].unsqueeze(0), x) == (0, 0, 0)
    assert _bytes(lambda x: x.t().reshape(n, -1) + 1, x) == (T * C * 4, T * C * 4, 1)


def test_padding_is_not_read():
    x = torch.randn(T, C)
    padded = (T + 2) * (C + 3)
    assert _bytes(lambda x: torch.nn.functional.pad(x, (1, 2, 1, 1)) * 2, x) == (T * C * 4, padded * 4, 1)


def test_an_index_that_is_no_sum_of_strides_is_evaluated():
    x = torch.randn(T, n, C)
    taken = T * n * (C - 2) // 8 * 8  # whole rows of eight out of rows of C - 2
    assert _bytes(lambda x: x[:, :, 2:].reshape(-1)[:taken].view(-1, 8) + 1, x) == (taken * 4, taken * 4, 1)


def test_gather_and_scatter():
    def scatter(x, i, rows):
        x.index_put_((i,), rows)

    def scatter_add(x, i, rows):
        x.index_put_((i,), rows, accumulate=True)

    x, i, rows = torch.randn(T, C), torch.tensor([1, 5, 1]), torch.randn(3, C)
    picked = 3 * C * 4
    assert _bytes(lambda x, i: x[i] * 2, x, i) == (24 + picked, picked, 1)
    assert _bytes(scatter, x, i, rows) == (24 + picked, picked, 1)
    assert _bytes(scatter_add, x, i, rows) == (24 + 2 * picked, picked, 1)


def test_external_kernels():
    a, b, bias = torch.randn(T, C), torch.randn(C, n), torch.randn(n)
    product = T * n * 4
    assert _bytes(lambda a, b: a @ b, a, b) == ((T * C + C * n) * 4, product, 1)
    assert _bytes(lambda a, b: a[2:4] @ b, a, b) == ((2 * C + C * n) * 4, 2 * n * 4, 1)
    with_relu = _bytes(lambda a, b, bias: torch.relu(torch.addmm(bias, a, b)), a, b, bias)
    assert with_relu == ((n + T * C + C * n) * 4 + product, 2 * product, 2)
    # sort gives two tensors: values and int64 indices
    assert _bytes(lambda a: torch.sort(a, -1), a) == (T * C * 4, T * C * (4 + 8), 1)


@torch.library.custom_op("perflab_test::copy_into", mutates_args=("target",))
def copy_into(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source)


def test_an_external_kernel_that_mutates_an_input():
    def copy_rows(x, y):
        copy_into(x[2:4], y[2:4])

    x, y = torch.randn(T, C), torch.randn(T, C)
    rows = 2 * C * 4
    # the schema says that the target is mutated, not that its old values are unused
    assert _bytes(copy_rows, x, y) == (2 * rows, rows, 1)


def test_a_concatenation_is_written_in_place():
    x, y = torch.randn(T, n, C), torch.randn(T, C)
    size = T * (n + 1) * C * 4
    assert _bytes(lambda x, y: torch.cat([x * 2, y[:, None]], 1), x, y)[:2] == (size, size)


def test_dynamic_shapes_count_the_shape_seen():
    x = torch.randn(T, C)
    assert _bytes(lambda x: x[1:] * 2, x, dynamic=True) == ((T - 1) * C * 4, (T - 1) * C * 4, 1)


def test_graphs_are_summed_as_often_as_they_run():
    def broken(x):
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    x = torch.randn(T, C)
    compiled = torch.compile(broken)
    traffic = count(lambda: [compiled(x) for _ in range(3)])
    size = T * C * 4
    assert (traffic.read_bytes, traffic.write_bytes, traffic.launches) == (6 * size, 6 * size, 6)
    assert (traffic.detail["graphs"], traffic.detail["graph_breaks"]) == (2, 1)


def test_a_backward_graph_counts_when_it_runs():
    x = torch.randn(T, C, requires_grad=True)
    g = torch.randn(T, C)
    compiled = torch.compile(torch.sin)
    size = T * C * 4
    forward = count(lambda: compiled(x))
    assert (forward.read_bytes, forward.write_bytes) == (size, size)
    both = count(lambda: torch.autograd.grad(compiled(x), x, g))
    assert (both.read_bytes, both.write_bytes) == (size + 2 * size, 2 * size)


def test_a_compiled_function_counts_again_and_still_works():
    x = torch.randn(T, C)
    compiled = torch.compile(lambda x: x * 3)
    compiled(x)
    first, second = count(lambda: compiled(x)), count(lambda: compiled(x))
    assert first == second and first.read_bytes == T * C * 4
    assert torch.equal(compiled(x), x * 3)


def test_a_call_that_compiles_nothing_is_refused():
    with pytest.raises(NothingCompiled):
        count(lambda: torch.ones(3) + 1)


def _einsum(x, f, h_post, h_res):
    mixed = torch.einsum("tij,tjc->tic", h_res, x.float())
    return (mixed + h_post[:, :, None] * f.float()[:, None]).to(x.dtype)


def _broadcast(x, f, h_post, h_res):
    mixed = (h_res[:, :, :, None] * x.float()[:, None]).sum(2)
    return (mixed + h_post[:, :, None] * f.float()[:, None]).to(x.dtype)


def test_how_post_res_is_written_decides_its_traffic():
    x, f = torch.randn(64, n, 256, dtype=torch.bfloat16), torch.randn(64, 256, dtype=torch.bfloat16)
    h_post, h_res = torch.rand(64, n), torch.rand(64, n, n)
    compulsory_read = sum(t.numel() * t.element_size() for t in (x, f, h_post, h_res))
    compulsory_write = x.numel() * 2
    assert _bytes(_broadcast, x, f, h_post, h_res) == (compulsory_read, compulsory_write, 1)
    widened = x.numel() * 4  # x in fp32 for the bmm, whose product is fp32 too: both written and read
    assert _bytes(_einsum, x, f, h_post, h_res) == (compulsory_read + 2 * widened, compulsory_write + 2 * widened, 3)
