"""What decoding reads: caches of keys and values, weights, and the residual sites' share, in bytes of one step.

A step gives every sequence of a batch one token. Bytes of weights and caches follow from the preset's sizes; those of
the sites are counted (`traffic.json`), at the step's own tokens. Activations inside layers are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from perflab.contract import ITEM_BYTES

from .model.presets import Preset
from .traffic import STREAMS, Counted, Decoding, Moved

DTYPE = "bf16"


def multi_head(heads: int, head_dim: int) -> int:
    """Cached elements of a token and layer: every head's key and value. With fewer heads cached, grouped queries'."""
    return 2 * heads * head_dim


def latent(kv_rank: int, rope: int) -> int:
    """The same of MLA: one compressed key-value, and the rotated key that all heads share."""
    return kv_rank + rope


def cache_bytes(elements: int, layers: int, context: int, batch: int = 1, dtype: str = DTYPE) -> int:
    """Bytes of a batch's caches at that many tokens. elements: of one token and layer.

    With `multi_head` it is 2 L T H bytes-per-element batch. Fails: ValueError for a negative size.
    """
    sizes = {"elements": elements, "layers": layers, "context": context, "batch": batch}
    for name, size in sizes.items():
        if size < 0:
            raise ValueError(f"{name}: expected at least 0, got {size}")
    return elements * layers * context * batch * ITEM_BYTES[dtype]


@dataclass(frozen=True)
class Step:
    """Bytes that one decoding step moves, by what they are of, and what the sites launch.

    shared   weights that every step reads: attention, norms, routers, shared experts, the output's table
    experts  weights of the routed experts that the batch meets, each sequence choosing alike and independently
    cache    MLA's, of every sequence
    sites    mHC's read and write, their phi with them
    plain    what plain residuals would move in their stead
    """

    shared: float
    experts: float
    cache: float
    sites: float
    plain: float
    launches: int

    @property
    def share(self) -> float:
        """The sites' share of all bytes."""
        return self.sites / (self.shared + self.experts + self.cache + self.sites)


def decode(preset: Preset, batch: int, context: int) -> Step:
    """One step of a batch whose sequences have that many tokens. Fails: ValueError where the batch was not counted."""
    item = ITEM_BYTES[DTYPE]
    expert = preset.expert_parameters() * (preset.layers - 1)
    routed = preset.active * expert
    met = experts_met(preset.routed, preset.active, batch)
    site = Decoding(preset.C).site(batch)
    plain: Moved = Counted(preset.C, DTYPE).residual()["forward"]
    return Step(
        shared=float((preset.active_parameters() - routed) * item),
        experts=float(met * expert * item),
        cache=float(cache_bytes(latent(preset.kv_rank, preset.rope), preset.layers, context, batch)),
        sites=site.bytes * preset.sites,
        plain=plain.bytes * batch * preset.sites,
        launches=(site.launches - plain.launches) * preset.sites,
    )


def experts_met(routed: int, active: int, batch: int) -> float:
    """Experts of a layer that a batch meets on average, when each token is sent to any `active` of them alike."""
    return routed * (1 - (1 - active / routed) ** batch)


def phi_bytes(preset: Preset) -> int:
    """What all sites' projections have in weights, in fp32: read once a step, whatever the batch."""
    return preset.sites * preset.site_parameters(STREAMS) * ITEM_BYTES["fp32"]
