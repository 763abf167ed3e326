"""One load of a tile of whole rows gives all three outputs, each stored from its own columns of the tile."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from perflab.measure.operators import Operator

REQUIRES = ("torch", "triton")
#: Blocks of tokens whose parts of the gradients of a and b are added in one step.
PARTS = 256


@triton.jit(do_not_specialize=["T"])
def _activate(m, r, a, b, h_pre, h_post, logits, T, n: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr):
    K: tl.constexpr = n * n + 2 * n
    t = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    k = tl.arange(0, BLOCK_K)
    live = t < T
    is_pre, is_post, is_res = k < n, (k >= n) & (k < 2 * n), (k >= 2 * n) & (k < K)
    m_t = tl.load(m + (t * K)[:, None] + k[None, :], mask=live[:, None] & (k < K)[None, :], other=0.0)
    r_t = tl.load(r + t, mask=live, other=1.0)
    bias = tl.load(b + k, mask=k < K, other=0.0)
    gate = tl.where(is_pre, tl.load(a), tl.where(is_post, tl.load(a + 1), tl.load(a + 2)))

    # h = (1 / r) [a_pre m_pre, a_post m_post, a_res m_res] + b
    h = (1.0 / r_t)[:, None] * (gate[None, :] * m_t) + bias[None, :]
    # h_pre = sigmoid(h), h_post = 2 sigmoid(h), where sigmoid(h) = e^min(h, 0) / (1 + e^-|h|) never overflows
    e = tl.exp(-tl.abs(h))
    s = tl.where(h < 0.0, e, 1.0) / (1.0 + e)
    tl.store(h_pre + (t * n)[:, None] + k[None, :], s, mask=live[:, None] & is_pre[None, :])
    tl.store(h_post + (t * n - n)[:, None] + k[None, :], 2.0 * s, mask=live[:, None] & is_post[None, :])
    tl.store(logits + (t * n * n - 2 * n)[:, None] + k[None, :], h, mask=live[:, None] & is_res[None, :])


@triton.jit(do_not_specialize=["T"])
def _activate_backward(
    dh_pre,
    dh_post,
    dlogits,
    m,
    r,
    a,
    b,
    dm,
    dr,
    parts,
    T,
    n: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    K: tl.constexpr = n * n + 2 * n
    k = tl.arange(0, BLOCK_K)
    is_pre, is_post, is_res = k < n, (k >= n) & (k < 2 * n), (k >= 2 * n) & (k < K)
    bias = tl.load(b + k, mask=k < K, other=0.0)
    gate = tl.where(is_pre, tl.load(a), tl.where(is_post, tl.load(a + 1), tl.load(a + 2)))
    db = tl.zeros([BLOCK_T, BLOCK_K], tl.float32)
    da = tl.zeros([BLOCK_T, BLOCK_K], tl.float32)
    for step in range(STEPS):
        t = (tl.program_id(0).to(tl.int64) * STEPS + step) * BLOCK_T + tl.arange(0, BLOCK_T)
        live = (t < T)[:, None]
        row = (t * K)[:, None] + k[None, :]
        m_t = tl.load(m + row, mask=live & (k < K)[None, :], other=0.0)
        inverse = 1.0 / tl.load(r + t, mask=t < T, other=1.0)
        g_pre = tl.load(dh_pre + (t * n)[:, None] + k[None, :], mask=live & is_pre[None, :], other=0.0)
        g_post = tl.load(dh_post + (t * n - n)[:, None] + k[None, :], mask=live & is_post[None, :], other=0.0)
        g_res = tl.load(dlogits + (t * n * n - 2 * n)[:, None] + k[None, :], mask=live & is_res[None, :], other=0.0)

        # dh = [dh_pre s', 2 dh_post s', dlogits], where s' = s (1 - s) = e^-|h| / (1 + e^-|h|)^2 keeps its tails
        e = tl.exp(-tl.abs(inverse[:, None] * (gate[None, :] * m_t) + bias[None, :]))
        slope = e / ((1.0 + e) * (1.0 + e))
        dh = tl.where(is_res[None, :], g_res, (g_pre + 2.0 * g_post) * slope)
        # dm = a dh / r;  dr = -sum_k a_k m_k dh_k / r^2
        product = inverse[:, None] * m_t * dh
        if dm is not None:
            tl.store(dm + row, inverse[:, None] * gate[None, :] * dh, mask=live & (k < K)[None, :])
        if dr is not None:
            tl.store(dr + t, -inverse * tl.sum(gate[None, :] * product, 1), mask=t < T)
        # db[k] = sum_t dh[t, k];  da = sum_t sum_k m[t, k] dh[t, k] / r[t], k in a's own columns
        if parts is not None:
            db += dh
            da += product
    if parts is not None:
        parts += tl.program_id(0) * (K + 3)
        tl.store(parts + k, tl.sum(db, 0), mask=k < K)
        of_columns = tl.sum(da, 0)
        tl.store(parts + K, tl.sum(tl.where(is_pre, of_columns, 0.0), 0))
        tl.store(parts + K + 1, tl.sum(tl.where(is_post, of_columns, 0.0), 0))
        tl.store(parts + K + 2, tl.sum(tl.where(is_res, of_columns, 0.0), 0))


@triton.jit(do_not_specialize=["count"])
def _add_parts(parts, da, db, count, K: tl.constexpr, PARTS: tl.constexpr, BLOCK_K: tl.constexpr):
    p = tl.arange(0, PARTS)
    k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    mask = (p < count)[:, None] & (k < K + 3)[None, :]
    total = tl.sum(tl.load(parts + (p * (K + 3))[:, None] + k[None, :], mask=mask, other=0.0), 0)
    if db is not None:
        tl.store(db + k, total, mask=k < K)
    if da is not None:
        tl.store(da + (k - K), total, mask=(k >= K) & (k < K + 3))


def _tile(K):
    """Tokens and columns of a tile of whole rows."""
    block_k = triton.next_power_of_2(K)
    # Four vectors of four elements per thread; every block reads b, so never fewer than 32 tokens.
    return max(32, 2048 // block_k), block_k


def _outputs(m, *_):
    T, K = m.shape
    n = _streams(K)
    return m.new_empty(T, n), m.new_empty(T, n), m.new_empty(T, n, n)


def _forward(m: Tensor, r: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    T, K = m.shape
    outputs = _outputs(m)
    block_t, block_k = _tile(K)
    _activate[(triton.cdiv(T, block_t),)](
        *(m, r, a, b),
        *outputs,
        T,
        _streams(K),
        block_t,
        block_k,
        num_warps=block_t * block_k // 512,
        enable_fp_fusion=True,
    )
    return outputs


def _backward(needs, dh_pre, dh_post, dlogits, m, r, a, b):
    T, K = m.shape
    inputs = (m, r, a, b)
    dm, dr, da, db = (torch.empty_like(t) if need else None for t, need in zip(inputs, needs, strict=True))
    block_t, block_k = max(8, 2048 // triton.next_power_of_2(K)), triton.next_power_of_2(K)
    # Parts are written and read again: a block takes 128 tokens at least, to keep that below a hundredth of the bytes.
    steps = max(1, 128 // block_t)
    while triton.cdiv(T, steps * block_t) > PARTS:
        steps *= 2
    blocks = triton.cdiv(T, steps * block_t)
    parts = m.new_empty(blocks, K + 3) if needs[2] or needs[3] else None
    _activate_backward[(blocks,)](
        *(dh_pre, dh_post, dlogits),
        *inputs,
        *(dm, dr, parts),
        T,
        _streams(K),
        steps,
        block_t,
        block_k,
        num_warps=8,
        # A product that more gradients want may not be fused: without fusion, none depends on who else is wanted.
        enable_fp_fusion=False,
    )
    if parts is not None:
        columns = 32
        _add_parts[(triton.cdiv(K + 3, columns),)](
            parts, da, db, blocks, K, PARTS, columns, num_warps=8, enable_fp_fusion=False
        )
    return dm, dr, da, db


_operator = Operator(_forward, _backward, _outputs)


def _streams(K):
    return {3: 1, 8: 2, 24: 4, 80: 8}.get(K)


def activate(m, r, a, b):
    """Scale by the norm, the gates and the bias; then the sigmoids.

    m      [T, K] fp32   projected coefficients, K = n^2 + 2n in the order pre, post, res; n in 1, 2, 4, 8
    r      [T]    fp32   norm of each token
    a      [3]    fp32   gates of pre, post, res
    b      [K]    fp32   bias
    gives  h_pre [T, n] in (0, 1), h_post [T, n] in (0, 2), logits [T, n, n], all fp32

    Fails: ValueError for any other shape or dtype, or inputs on different devices.
    """
    if m.dim() != 2 or _streams(m.shape[1]) is None:
        raise ValueError(f"m: expected [T, n*n + 2*n] with n in 1, 2, 4, 8; got {list(m.shape)}")
    T, K = m.shape
    for name, tensor, shape in (("m", m, (T, K)), ("r", r, (T,)), ("a", a, (3,)), ("b", b, (K,))):
        if (tensor.shape, tensor.dtype, tensor.device) != (shape, torch.float32, m.device):
            got = f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}"
            raise ValueError(f"{name}: expected {list(shape)} torch.float32 on {m.device}; got {got}")
    return _operator(m, r, a, b)
