"""torch.compile of the forty normalisations over the last two dims."""

import torch

REQUIRES = ("torch",)


@torch.compile(dynamic=False)
def sinkhorn(logits, iterations):
    """Doubly stochastic matrix of every token; see eager.py for shapes."""
    matrix = logits.softmax(1)
    for step in range(iterations):
        if step:
            matrix = matrix / matrix.sum(1, keepdim=True)
        matrix = matrix / matrix.sum(2, keepdim=True)
    return matrix
