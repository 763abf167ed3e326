"""Nineteen iterations instead of twenty."""

REQUIRES = ("torch",)


def sinkhorn(logits, iterations):
    """Wrong on purpose."""
    matrix = (logits - logits.amax((1, 2), keepdim=True)).exp()
    for _ in range(iterations - 1):
        matrix = matrix / matrix.sum(1, keepdim=True)
        matrix = matrix / matrix.sum(2, keepdim=True)
    return matrix
