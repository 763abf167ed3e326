"""Rows are normalised first and columns last."""

REQUIRES = ("torch",)


def sinkhorn(logits, iterations):
    """Wrong on purpose."""
    matrix = (logits - logits.amax((1, 2), keepdim=True)).exp()
    for _ in range(iterations):
        matrix = matrix / matrix.sum(2, keepdim=True)
        matrix = matrix / matrix.sum(1, keepdim=True)
    return matrix
