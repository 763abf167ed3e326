"""The norm's mean is taken over C instead of n C: r is sqrt(n) times too large."""

REQUIRES = ("torch",)


def project(x, phi, eps):
    """Wrong on purpose."""
    flat = x.flatten(1).float()
    return flat @ phi, (flat.square().sum(1) / x.shape[2] + eps).sqrt()
