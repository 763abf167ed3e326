"""torch.utils.checkpoint of each block, told to keep whatever the layer functions compute and to repeat all else.

Repeating all else, it keeps no coefficients, only 5 kB of random state a block on a CPU besides the paper's table 3. In
backward it holds whatever autograd saves of a whole block, fp32 copies included, where rebuilding holds streams alone.
"""

import contextlib
import functools

import torch.utils.checkpoint
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from perflab import Unsupported

from ..sites import KITS, Site, blocks, run_sites, stacked_sites

REQUIRES = ("torch",)


def stack(x, phi, a, b, g, w, block, eps=1e-20, iterations=20):
    """L sites with F(v) = w v of the normalised read, in checkpointed blocks; see eager.py for shapes.

    Fails: Unsupported for block 0, which checkpoints nothing: that is eager.py.
    """
    if not block:
        raise Unsupported("without a block nothing is checkpointed: that is stack/eager")
    keep = _Keep()
    sites = [keep.what_f_computes(site) for site in stacked_sites((phi, a, b, g, w), eps, iterations)]
    for part in blocks(len(sites), block):
        run = functools.partial(run_sites, KITS["eager"], sites[part])
        x = torch.utils.checkpoint.checkpoint(run, x, use_reentrant=False, context_fn=keep.contexts)
    return x


class _Keep:
    """A checkpoint policy: results of tensor operations inside a layer function are kept."""

    def __init__(self):
        self.inside = False

    def contexts(self):
        return create_selective_checkpoint_contexts(self._policy)

    def what_f_computes(self, site):
        def watched(v):
            with self._entered():
                return site.F(v)

        return Site(site.phi, site.a, site.b, watched, site.norm, site.eps, site.iterations)

    @contextlib.contextmanager
    def _entered(self):
        self.inside = True
        try:
            yield
        finally:
            self.inside = False

    def _policy(self, ctx, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if self.inside else CheckpointPolicy.PREFER_RECOMPUTE
