"""No gradient reaches the coefficients through the write: its weights count as constants."""

from ...model.training import Design, Training
from ...sites import KITS, Kit

REQUIRES = ("torch",)
CONVENTION = {"residual": "hc"}


class _Constant(Kit):
    def write(self, x, f, h_post, h_res):
        return KITS["eager"].write(x, f, h_post.detach(), h_res)


def step(shape, dtype, device, seed):
    """A decoder of a preset's sizes, in training."""
    training = Training(shape, Design("hc"), dtype, device, seed)
    training.model.sites.kit = _Constant("model.unconstrained", "", "", lean=False)
    return training
