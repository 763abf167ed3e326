"""Projection and norm in fp64."""


def project(x, phi, eps):
    """m[t] = vec(x[t]) phi and r[t] = sqrt(mean(x[t]^2) + eps), the mean over all n C elements."""
    flat = x.flatten(1)
    return flat @ phi, (flat.square().mean(1) + eps).sqrt()
