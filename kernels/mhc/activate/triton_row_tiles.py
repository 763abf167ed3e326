"""One load of a tile of whole rows gives all three outputs, each stored from its own columns of the tile."""

import torch
import triton
import triton.language as tl

REQUIRES = ("torch", "triton")


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


def activate(m, r, a, b):
    """Scale by the norm, the gates and the bias; then the sigmoids.

    m      [T, K] fp32   projected coefficients, K = n^2 + 2n in the order pre, post, res; n in 1, 2, 4, 8
    r      [T]    fp32   norm of each token
    a      [3]    fp32   gates of pre, post, res
    b      [K]    fp32   bias
    gives  h_pre [T, n] in (0, 1), h_post [T, n] in (0, 2), logits [T, n, n], all fp32

    Fails: ValueError for any other shape or dtype, or inputs on different devices.
    """
    n = {3: 1, 8: 2, 24: 4, 80: 8}.get(m.shape[1]) if m.dim() == 2 else None
    if n is None:
        raise ValueError(f"m: expected [T, n*n + 2*n] with n in 1, 2, 4, 8; got {list(m.shape)}")
    T, K = m.shape
    for name, tensor, shape in (("m", m, (T, K)), ("r", r, (T,)), ("a", a, (3,)), ("b", b, (K,))):
        if (tensor.shape, tensor.dtype, tensor.device) != (shape, torch.float32, m.device):
            got = f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}"
            raise ValueError(f"{name}: expected {list(shape)} torch.float32 on {m.device}; got {got}")
    m, r, a, b = (tensor.contiguous() for tensor in (m, r, a, b))
    h_pre, h_post, logits = (
        torch.empty(shape, dtype=torch.float32, device=m.device) for shape in ((T, n), (T, n), (T, n, n))
    )
    # Four vectors of four elements per thread; every block reads b, so never fewer than 32 tokens.
    block_k = triton.next_power_of_2(K)
    block_t = max(32, 2048 // block_k)
    with torch.cuda.device_of(m):
        _activate[(triton.cdiv(T, block_t),)](
            m,
            r,
            a,
            b,
            h_pre,
            h_post,
            logits,
            T,
            n,
            block_t,
            block_k,
            num_warps=block_t * block_k // 512,
            enable_fp_fusion=True,
        )
    return h_pre, h_post, logits
