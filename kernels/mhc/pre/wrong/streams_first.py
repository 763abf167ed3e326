"""The weights are read as [n, T] where [T, n] is stored."""

REQUIRES = ("torch",)


def pre(x, h_pre):
    """Wrong on purpose."""
    weights = h_pre.reshape(h_pre.shape[1], h_pre.shape[0]).t()
    return (weights[:, :, None] * x.float()).sum(1).to(x.dtype)
