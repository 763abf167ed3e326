"""The sum is written over x, which backward and other readers still need."""

REQUIRES = ("torch",)


def residual(x, f):
    """Wrong on purpose."""
    return x.add_(f)
