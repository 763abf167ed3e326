"""Twenty column and row normalisations in fp64."""


def sinkhorn(logits, iterations):
    """M0 = exp(logits), then M <- rows(columns(M)); the maximum of the whole matrix cancels in the first step."""
    matrix = (logits - logits.amax((1, 2), keepdim=True)).exp()
    for _ in range(iterations):
        matrix = matrix / matrix.sum(1, keepdim=True)
        matrix = matrix / matrix.sum(2, keepdim=True)
    return matrix
