"""Coefficients are rounded to bf16 before use."""

REQUIRES = ("torch",)


def post_res(x, f, h_post, h_res):
    """Wrong on purpose."""
    mixed = h_res.bfloat16().float() @ x.float()
    return (mixed + h_post.bfloat16().float()[:, :, None] * f[:, None, :].float()).to(x.dtype)
