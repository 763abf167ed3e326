"""The result is transposed: [in, out] where [out, in] is meant."""

REQUIRES = ("torch",)


def sinkhorn(logits, iterations):
    """Wrong on purpose."""
    matrix = (logits - logits.amax((1, 2), keepdim=True)).exp()
    for _ in range(iterations):
        matrix = matrix / matrix.sum(1, keepdim=True)
        matrix = matrix / matrix.sum(2, keepdim=True)
    return matrix.mT.contiguous()
