"""phi is rounded to bf16, which keeps three bits fewer than tf32."""

REQUIRES = ("torch",)


def project(x, phi, eps):
    """Wrong on purpose."""
    flat = x.flatten(1).float()
    return flat @ phi.bfloat16().float(), (flat.square().mean(1) + eps).sqrt()
