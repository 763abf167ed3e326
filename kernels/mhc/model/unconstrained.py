"""The read of hyper-connections that nothing constrains, as a kit for sites; they are written as mHC's are."""

from ..pre.eager import pre


def read_through(x, theta, a, b, eps, iterations):
    """Coefficients from every stream's own norm: equation 5 of arXiv 2512.24880, arXiv 2409.19606.

    x      [T, n, C]      stream dtype
    theta  [C, n + 2]     fp32, columns in the order pre, post, res; the norm's weight is absorbed in it
    a      [3]            fp32, gates of pre, post and res
    b      [n^2 + 2n]     fp32, biases
    gives  x for its further uses, u [T, C], h_pre [T, n] (no gradient), h_post [T, n], h_res [T, n, n], [out, in]
    """
    # One use of x, so that the gradients of both uses inside are added before they meet the write's.
    inside = x.view_as(x)
    n = x.shape[1]
    x_32 = inside.float()
    normed = x_32 * (x_32.square().mean(-1, keepdim=True) + eps).rsqrt()
    h = (normed @ theta).tanh()
    h_pre = a[0] * h[..., 0] + b[:n]
    h_post = a[1] * h[..., 1] + b[n : 2 * n]
    h_res = a[2] * h[..., 2:].mT + b[2 * n :].view(n, n)
    return x, pre(inside, h_pre), h_pre.detach(), h_post, h_res
