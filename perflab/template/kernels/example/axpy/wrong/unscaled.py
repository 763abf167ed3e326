"""alpha is forgotten."""

REQUIRES = ("torch",)


def axpy(x, y, alpha):
    """Wrong on purpose."""
    return x + y
