"""exp is stabilised by each row's own maximum, which rescales rows before the first column normalisation."""

REQUIRES = ("torch",)


def sinkhorn(logits, iterations):
    """Wrong on purpose."""
    matrix = (logits - logits.amax(2, keepdim=True)).exp()
    for _ in range(iterations):
        matrix = matrix / matrix.sum(1, keepdim=True)
        matrix = matrix / matrix.sum(2, keepdim=True)
    return matrix
