"""Forty normalisations, each a sum and a division over the whole tensor."""

REQUIRES = ("torch",)


def sinkhorn(logits, iterations):
    """Doubly stochastic matrix of every token, to the accuracy of `iterations`.

    logits [T, n, n] fp32, indexed [out, in]
    gives  [T, n, n] fp32; rows sum to 1 to rounding, columns approximately
    """
    matrix = logits.softmax(1)
    for step in range(iterations):
        if step:
            matrix = matrix / matrix.sum(1, keepdim=True)
        matrix = matrix / matrix.sum(2, keepdim=True)
    return matrix
