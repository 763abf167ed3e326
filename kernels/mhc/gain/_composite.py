"""What all implementations share: the product of the sites' matrices, and its gains."""


def balanced(sinkhorn, logits, iterations):
    """`sinkhorn`, which takes [T, n, n], on the matrices of all sites: logits [L, T, n, n] gives the same shape."""
    return sinkhorn(logits.flatten(0, 1), iterations=iterations).unflatten(0, logits.shape[:2])


def gains(h_res):
    """Gains of the composite of the matrices h_res [L, T, n, n], indexed [out, in], and their column error; fp32.

    gives  [T], [T], [T]   largest absolute row sum and column sum of H_L ... H_1, which bound what a signal and what
                           its gradient can grow by; largest |column sum - 1| of a single matrix
    """
    composite = h_res[0]
    for matrix in h_res[1:]:
        # x_{l+1} = H_l x_l
        composite = matrix @ composite
    magnitudes = composite.abs()
    column_error = (h_res.sum(2) - 1).abs().amax((0, 2))
    return magnitudes.sum(2).amax(1), magnitudes.sum(1).amax(1), column_error
