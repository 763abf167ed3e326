"""The mean over the streams where the sum is meant."""

REQUIRES = ("torch",)


def pre(x, h_pre):
    """Wrong on purpose."""
    return (h_pre[:, :, None] * x.float()).mean(1).to(x.dtype)
