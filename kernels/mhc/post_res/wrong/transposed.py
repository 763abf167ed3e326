"""H_res is applied transposed: [in, out] where [out, in] is stored."""

REQUIRES = ("torch",)


def post_res(x, f, h_post, h_res):
    """Wrong on purpose."""
    mixed = h_res.mT @ x.float()
    return (mixed + h_post[:, :, None] * f[:, None, :].float()).to(x.dtype)
