"""Eager counts against bytes worked out by hand."""

import pytest
import torch
from torch.nn import functional as F

from perflab.measure.traffic.dispatch import count

T, n, C = 6, 4, 16


def _bytes(call):
    traffic = count(call)
    return traffic.read_bytes, traffic.write_bytes


def test_views_cost_nothing():
    x = torch.zeros(T, n, C)
    traffic = count(lambda: x.view(T, n * C).t()[3:].unsqueeze(0).expand(2, -1, -1).detach())
    assert (traffic.read_bytes, traffic.write_bytes, traffic.launches, traffic.detail) == (0, 0, 0, {})


def test_a_traffic_says_where_it_comes_from():
    x = torch.zeros(T, C)
    traffic = count(lambda: (x * 2) * 3)
    assert traffic.source == "dispatch" and torch.__version__ in traffic.collector
    assert traffic.launches == 2
    row = {"count": 2, "read_bytes": 2 * T * C * 4, "write_bytes": 2 * T * C * 4}
    assert traffic.detail == {"aten.mul.Tensor": row}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_dtypes_on_a_device(dtype, device):
    x = torch.zeros(T, C, dtype=dtype, device=device)
    size = T * C * dtype.itemsize
    assert _bytes(lambda: x + x) == (size, size)  # the same tensor twice is read once


def test_an_expanded_input_costs_its_storage():
    row, x = torch.zeros(C), torch.zeros(T, C)
    assert _bytes(lambda: x + row.expand(T, C)) == ((T * C + C) * 4, T * C * 4)
    assert _bytes(lambda: row.expand(T, C).sum()) == (C * 4, 4)


def test_a_slice_costs_the_slice():
    x = torch.zeros(T, C)
    assert _bytes(lambda: x[1:3] + 1) == (2 * C * 4, 2 * C * 4)
    assert _bytes(lambda: x[:, 2:5] + 1) == (T * 3 * 4, T * 3 * 4)
    assert _bytes(lambda: x[:, ::2] + x[:, 1::2]) == (T * C * 4, T * C // 2 * 4)
    assert _bytes(lambda: x[:, :10] + x[:, 5:15]) == (T * 15 * 4, T * 10 * 4)  # columns 5 to 9 are read once


def test_a_transpose_of_an_input_is_the_input():
    x = torch.zeros(C, C)
    assert _bytes(lambda: x + x.t()) == (C * C * 4, C * C * 4)


def test_in_place_costs_both():
    x, y = torch.zeros(T, C), torch.zeros(C)
    size = T * C * 4
    assert _bytes(lambda: x.mul_(2)) == (size, size)
    assert _bytes(lambda: x.add_(y)) == (size + C * 4, size)
    assert _bytes(lambda: x[:2].mul_(2)) == (2 * C * 4, 2 * C * 4)


def test_an_overwritten_destination_is_not_read():
    x, y = torch.zeros(T, C), torch.zeros(T, C, dtype=torch.bfloat16)
    size = T * C * 4
    assert _bytes(lambda: x.copy_(y)) == (size // 2, size)
    assert _bytes(lambda: x.fill_(1)) == (0, size)
    assert _bytes(x.zero_) == (0, size)
    assert _bytes(x.normal_) == (0, size)
    assert _bytes(lambda: torch.add(y, y, out=x)) == (size // 2, size)


def test_factories_write_and_empty_does_not():
    x = torch.zeros(T, C)
    size = T * C * 4
    assert _bytes(lambda: (torch.empty(T, C), torch.empty_like(x), x.new_empty(3))) == (0, 0)
    assert _bytes(lambda: torch.empty(2).resize_(5)) == (0, 0)
    assert _bytes(lambda: torch.zeros(T, C)) == (0, size)
    assert _bytes(lambda: torch.ones_like(x)) == (0, size)
    assert _bytes(lambda: x.new_zeros(3)) == (0, 12)


def test_a_number_for_the_host_is_read():
    x = torch.zeros(())
    assert _bytes(x.item) == (4, 0)
    assert count(lambda: torch.equal(torch.zeros(3), x.expand(3))).read_bytes == 3 * 4 + 4


def test_matmul_and_its_parts():
    a, b, bias = torch.zeros(T, C), torch.zeros(C, n), torch.zeros(n)
    assert _bytes(lambda: a @ b) == ((T * C + C * n) * 4, T * n * 4)
    assert _bytes(lambda: torch.addmm(bias, a, b)) == ((n + T * C + C * n) * 4, T * n * 4)
    # einsum is views around one bmm here
    x, h = torch.zeros(T, n, C), torch.zeros(T, n, n)
    assert _bytes(lambda: torch.einsum("tij,tjc->tic", h, x)) == ((T * n * C + T * n * n) * 4, T * n * C * 4)


def test_composites_are_counted_by_their_parts_under_inference_mode_too():
    x, w = torch.zeros(2, 3, C), torch.zeros(n, C)
    expected = _bytes(lambda: F.linear(x, w))
    with torch.inference_mode():
        assert _bytes(lambda: F.linear(x, w)) == expected == ((6 * C + n * C) * 4, 6 * n * 4)


def test_the_backward_pass_is_counted():
    a = torch.zeros(T, C, requires_grad=True)
    y = a * 2
    g = torch.ones(T, C)
    assert _bytes(lambda: torch.autograd.grad(y, a, g)) == (T * C * 4, T * C * 4)


def test_gathers_read_what_they_give():
    x, i = torch.zeros(T, C), torch.tensor([1, 1, 4])
    assert _bytes(lambda: x.index_select(0, i)) == (3 * C * 4 + 24, 3 * C * 4)
    assert _bytes(lambda: x[i]) == (3 * C * 4 + 24, 3 * C * 4)
    assert _bytes(lambda: F.embedding(i, x)) == (3 * C * 4 + 24, 3 * C * 4)
    assert _bytes(lambda: x.gather(1, i[:, None])) == (3 * 4 + 24, 3 * 4)
    many = torch.zeros(100, dtype=torch.long)
    assert count(lambda: x.index_select(0, many)).read_bytes == T * C * 4 + 800  # never more than the source


def test_scatters_write_what_they_pick():
    x, i, rows = torch.zeros(T, C), torch.tensor([1, 4]), torch.zeros(2, C)
    picked = 2 * C * 4
    assert _bytes(lambda: x.index_copy_(0, i, rows)) == (16 + picked, picked)
    assert _bytes(lambda: x.index_add_(0, i, rows)) == (16 + 2 * picked, picked)
    assert _bytes(lambda: x.index_put_((i,), rows)) == (16 + picked, picked)
    assert _bytes(lambda: x.index_put_((i,), rows, accumulate=True)) == (16 + 2 * picked, picked)
    one_value = torch.zeros(())
    assert _bytes(lambda: x.__setitem__((slice(None), i), one_value)) == (16 + 4, 2 * T * 4)
    one = torch.zeros(2, 1, dtype=torch.long)
    assert _bytes(lambda: x.scatter_(1, one, rows)) == (16 + 2 * 4, 2 * 4)
    assert _bytes(lambda: x.scatter_add_(1, one, rows)) == (16 + 4 * 4, 2 * 4)
    assert _bytes(lambda: x.scatter(1, one, rows)) == (16 + T * C * 4 + picked, T * C * 4)


@pytest.mark.parametrize(("device", "written"), [("cpu", 2), ("meta", T * C)])
def test_a_mask_is_counted_by_its_true_entries(device, written):
    x = torch.zeros(T, C, device=device)
    mask = torch.zeros(T, C, dtype=torch.bool)
    mask[2, 3] = mask[4, 5] = True
    mask, value = mask.to(device), torch.zeros((), device=device)
    assert _bytes(lambda: x.index_put_((mask,), value)) == (T * C + 4, written * 4)


def test_foreach_counts_every_tensor():
    tensors = [torch.zeros(3), torch.zeros(5)]
    traffic = count(lambda: torch._foreach_mul_(tensors, 2.0))
    assert (traffic.read_bytes, traffic.write_bytes, traffic.launches) == (32, 32, 1)
    assert _bytes(lambda: torch._foreach_zero_(tensors)) == (0, 32)


def test_sparse_tensors_are_refused():
    x = torch.eye(3).to_sparse()
    with pytest.raises(NotImplementedError):
        count(lambda: x * 2)
