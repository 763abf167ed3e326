"""Small Triton kernels with known traffic; run as a program under TRITON_INTERPRET=1, prints what was counted as JSON.

A program of its own, because the variable must be set before a kernel is decorated.
"""

import json
import sys

import torch
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

from perflab.measure.traffic.interpreted import NotUniform, count


@triton.jit
def copy(x, y, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < N), mask=i < N)


@triton.jit
def centre(x, y, C: tl.constexpr):
    row = tl.program_id(0) * C
    i = row + tl.arange(0, C)
    mean = tl.sum(tl.load(x + i)) / C
    tl.store(y + i, tl.load(x + i) - mean)


@triton.jit
def add_row(x, row, y, T, C, BT: tl.constexpr, BC: tl.constexpr):
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    mask = (t < T)[:, None] & (c < C)[None, :]
    i = t[:, None] * C + c[None, :]
    tl.store(y + i, tl.load(x + i, mask=mask) + tl.load(row + c, mask=c < C)[None, :], mask=mask)


@triton.jit
def add_row_folded(x, row, y, T, C, BT: tl.constexpr, BC: tl.constexpr):
    columns = tl.cdiv(C, BC)
    t = (tl.program_id(0) // columns) * BT + tl.arange(0, BT)
    c = (tl.program_id(0) % columns) * BC + tl.arange(0, BC)
    mask = (t < T)[:, None] & (c < C)[None, :]
    i = t[:, None] * C + c[None, :]
    tl.store(y + i, tl.load(x + i, mask=mask) + tl.load(row + c, mask=c < C)[None, :], mask=mask)


@triton.jit
def grid_stride(x, y, N, BLOCK: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, N, tl.num_programs(0) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        tl.store(y + i, tl.load(x + i, mask=i < N), mask=i < N)


@triton.jit
def histogram(x, bins, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < N, other=0)
    tl.atomic_add(bins + value, 1, mask=i < N)


@triton.jit
def take_turn(lock):
    tl.atomic_cas(lock, 0, 1)


@triton.jit
def described(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    source = tl.make_tensor_descriptor(x, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    target = tl.make_tensor_descriptor(y, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    target.store([m, n], source.load([m, n]))


@triton.jit
def described_by_host(source, y, N, BM: tl.constexpr, BN: tl.constexpr):
    block = source.load([0, 0])
    i = tl.arange(0, BM)[:, None] * N + tl.arange(0, BN)[None, :]
    tl.store(y + i, block)


@triton.jit
def column(x, y, T: tl.constexpr, stride):
    t = tl.arange(0, T)
    tl.store(y + t, tl.load(x + t * stride))


@triton.jit
def product(a, b, c, N: tl.constexpr, K: tl.constexpr, B: tl.constexpr):
    m, n = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1) * B + tl.arange(0, B)
    total = tl.zeros((B, B), tl.float32)
    for start in range(0, K, B):
        k = start + tl.arange(0, B)
        # c += a_k b_k
        total += tl.dot(tl.load(a + m[:, None] * K + k), tl.load(b + k[:, None] * N + n))
    tl.store(c + m[:, None] * N + n, total)


@triton.jit
def through_table(table, y, BLOCK: tl.constexpr):
    x = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i))


def _copy(dtype, n=1000, **options):
    x, y = torch.ones(n, dtype=dtype), torch.zeros(n, dtype=dtype)
    return count(lambda: copy[(triton.cdiv(n, 128),)](x, y, n, BLOCK=128), **options)


def _rows(kernel, grid, T, C, **options):
    x, row, y = torch.ones(T, C), torch.ones(C), torch.zeros(T, C)
    return count(lambda: kernel[grid](x, row, y, T, C, BT=4, BC=16), **options)


def two_dimensional(**options):
    return _rows(add_row, lambda meta: (triton.cdiv(37, meta["BT"]), triton.cdiv(70, meta["BC"])), 37, 70, **options)


def twice():
    x, y = torch.ones(8, 64), torch.zeros(8, 64)
    return count(lambda: centre[(8,)](x, y, C=64))


def named():
    x, out = torch.ones(8, 64), torch.zeros(8, 64)
    return count(lambda: centre[(4,)](x[4:], out.view(-1), C=64), names={"input": x, "result": out})


def in_place():
    x = torch.ones(8, 64)
    return count(lambda: centre[(8,)](x, x, C=64))


def launches_and_tensor_ops():
    x = torch.ones(256)

    def call():
        workspace, y = torch.empty(256), torch.zeros(256)
        copy[(2,)](x, workspace, 256, BLOCK=128)
        copy[(2,)](workspace, y, 256, BLOCK=128)
        return y.sum()

    return count(call)


def grid_stride_sampled(n):
    x, y = torch.ones(n), torch.zeros(n)
    return count(lambda: grid_stride[(100,)](x, y, n, BLOCK=16), budget=20)


def atomics():
    x, bins = torch.arange(100, dtype=torch.int32) % 4, torch.zeros(4, dtype=torch.int32)
    traffic = count(lambda: histogram[(2,)](x, bins, 100, BLOCK=64))
    assert bins.tolist() == [25] * 4
    return traffic


def compare_and_swap():
    lock = torch.zeros(1, dtype=torch.int32)
    return count(lambda: take_turn[(3,)](lock))


def descriptor():
    x, y = torch.ones(10, 20), torch.zeros(10, 20)
    traffic = count(lambda: described[(2, 2)](x, y, 10, 20, BM=8, BN=16))
    assert torch.equal(x, y)
    return traffic


def host_descriptor():
    x, y = torch.ones(8, 16, dtype=torch.float16), torch.zeros(8, 16, dtype=torch.float16)
    return count(lambda: described_by_host[(1,)](TensorDescriptor.from_tensor(x, [8, 16]), y, 16, BM=8, BN=16))


def one_column(**options):
    x, y = torch.ones(64, 16), torch.zeros(64)
    return count(lambda: column[(1,)](x[:, 3], y, T=64, stride=16), **options)


def expanded():
    x, y = torch.ones(1).expand(64), torch.zeros(64)
    return count(lambda: column[(1,)](x, y, T=64, stride=x.stride(0)))


def matmul(M=64, N=96, K=32):
    a, b, c = torch.randn(M, K), torch.randn(K, N), torch.zeros(M, N)
    traffic = count(lambda: product[(M // 16, N // 16)](a, b, c, N, K, B=16))
    torch.testing.assert_close(c, a @ b)
    return traffic


def outside():
    x, y = torch.ones(32), torch.zeros(32)
    table = torch.tensor([x.data_ptr()])
    return count(lambda: through_table[(1,)](table, y, BLOCK=32))


def nested():
    try:
        return count(lambda: _copy(torch.float32))
    except RuntimeError as error:
        return {"refused": str(error)}


def after_a_failure():
    x = torch.ones(8)
    try:
        count(lambda: copy[(1,)](x))
    except TypeError as error:
        return {"failed": str(error), "then": _copy(torch.float32).read_bytes}


def nothing():
    x = torch.zeros(0)
    return count(lambda: copy[(0,)](x, x, 0, BLOCK=128))


def large_sampled():
    return _copy(torch.bfloat16, n=128 * 16384 - 5, budget=32)


CASES = {
    **{f"copy_{str(d)[6:]}": lambda d=d: _copy(d) for d in (torch.bfloat16, torch.float32, torch.float64, torch.int8)},
    "copy_sampled": lambda: _copy(torch.float32, budget=4),
    "twice": twice,
    "named": named,
    "in_place": in_place,
    "grid_2d": two_dimensional,
    "grid_2d_sampled": lambda: two_dimensional(budget=18),
    "folded": lambda: _rows(add_row_folded, (50,), 37, 70),
    "folded_sampled": lambda: _rows(add_row_folded, (50,), 37, 70, budget=12),
    "folded_even_sampled": lambda: _rows(add_row_folded, (40,), 40, 64, budget=12),
    "grid_stride_even": lambda: grid_stride_sampled(100 * 16 * 2),
    "grid_stride_odd": lambda: grid_stride_sampled(100 * 16 * 2 + 16 * 30),
    "launches_and_tensor_ops": launches_and_tensor_ops,
    "atomics": atomics,
    "compare_and_swap": compare_and_swap,
    "descriptor": descriptor,
    "host_descriptor": host_descriptor,
    "column": one_column,
    "expanded": expanded,
    "matmul": matmul,
    "outside": outside,
    "nested": nested,
    "after_a_failure": after_a_failure,
    "nothing": nothing,
    "large_sampled": large_sampled,
}


def _counted(case):
    try:
        counted = case()
        return counted if isinstance(counted, dict) else counted.model_dump()
    except NotUniform as error:
        return {"not_uniform": str(error)}


def _patched():
    memory = interpreter._interpreter
    methods = (interpreter.GridExecutor.__call__, interpreter.InterpreterBuilder.set_grid_idx)
    return [memory.load, memory.store, memory.atomic_rmw, memory.atomic_cas, *methods]


if __name__ == "__main__":
    before = _patched()
    counts = {name: _counted(case) for name, case in CASES.items()}
    json.dump({"counts": counts, "restored": before == _patched()}, sys.stdout)
