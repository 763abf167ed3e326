"""Broadcast multiply in fp32, then sum over the streams."""

REQUIRES = ("torch",)


def pre(x, h_pre):
    """Weighted sum of the residual streams, accumulated in fp32.

    x      [T, n, C] stream dtype   residual streams
    h_pre  [T, n]    fp32           weight of each stream
    gives  [T, C]    stream dtype
    """
    return (h_pre[:, :, None] * x.float()).sum(1).to(x.dtype)
