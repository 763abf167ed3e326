"""The sum in fp64."""


def axpy(x, y, alpha):
    """z = alpha x + y."""
    return alpha * x + y
