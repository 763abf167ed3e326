"""The merge in fp64."""


def post_res(x, f, h_post, h_res):
    """y[t, i] = sum_j h_res[t, i, j] x[t, j] + h_post[t, i] f[t]."""
    return h_res @ x + h_post[:, :, None] * f[:, None, :]
