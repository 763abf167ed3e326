"""Attention with a compressed key-value (MLA), causal, with rotated positions."""

import functools

import torch
from torch import Tensor, nn
from torch.nn import functional

from perflab.measure.parts import part

from ..sites import rms_norm
from .presets import Preset

#: Standard deviation of every matrix at the start.
STD = 0.02
#: Of all norms. The paper's 1e-20 lets gradients of a token of zeros grow 1e10 times a site.
EPS = 1e-6


def matrix(*size: int) -> nn.Parameter:
    """Weights [..., out, in], drawn."""
    return nn.Parameter(torch.empty(size).normal_(std=STD))


class Attention(nn.Module):
    """v [B, S, C] -> [B, S, C], as in DeepSeek-V2 (arXiv 2405.04434, section 2.1) without compressed queries."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.preset = p = preset
        self.query = matrix(p.heads * (p.head_dim + p.rope), p.C)
        self.compress = matrix(p.kv_rank + p.rope, p.C)
        self.g = nn.Parameter(torch.ones(p.kv_rank))
        self.expand = matrix(p.heads * 2 * p.head_dim, p.kv_rank)
        self.out = matrix(p.C, p.heads * p.head_dim)

    def forward(self, v: Tensor) -> Tensor:
        """v [B, S, C] -> [B, S, C]."""
        p = self.preset
        with part("attention"):
            q, q_turned = self._heads(functional.linear(v, self.query)).split([p.head_dim, p.rope], -1)
            c, k_turned = functional.linear(v, self.compress).split([p.kv_rank, p.rope], -1)
            k, value = self._heads(functional.linear(rms_norm(c, self.g, EPS), self.expand)).chunk(2, -1)
            q = torch.cat([q, rotate(q_turned)], -1)
            k = torch.cat([k, rotate(k_turned.unsqueeze(1)).expand(-1, p.heads, -1, -1)], -1)
            # The fast kernels want values as wide as keys.
            value = functional.pad(value, (0, p.rope))
            found = functional.scaled_dot_product_attention(q, k, value, is_causal=True)[..., : p.head_dim]
            return functional.linear(found.transpose(1, 2).flatten(2), self.out)

    def _heads(self, v: Tensor) -> Tensor:
        """[B, S, heads * d] -> [B, heads, S, d]."""
        return v.unflatten(-1, (self.preset.heads, -1)).transpose(1, 2)


def rotate(v: Tensor) -> Tensor:
    """v [..., S, d] with the pair (2i, 2i + 1) of position s turned by s / 10000^(2i/d); computed in fp32."""
    cos, sin = _angles(v.shape[-2], v.shape[-1], v.device)
    first, second = v.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([first * cos - second * sin, first * sin + second * cos], -1).flatten(-2).to(v.dtype)


@functools.lru_cache(maxsize=8)
def _angles(S: int, d: int, device: torch.device) -> tuple[Tensor, Tensor]:
    # In fp64: at position 4096 an angle of fp32 is known to 2e-4 only.
    turns = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angles = torch.arange(S, dtype=torch.float64)[:, None] * turns
    return angles.cos().float().to(device), angles.sin().float().to(device)
