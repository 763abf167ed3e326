"""Sizes of the decoders: what each preset's parameters, FLOPs and bytes of state are, without building it.

A DeepSeek-V3 style decoder: attention with a compressed key-value (MLA), then a feed-forward layer, each in a residual
site. The first layer is dense, the others mix experts. Table 5 of arXiv 2512.24880 does not say all of it. With queries
that are not compressed, a dense layer as wide as the experts that a token meets (active + shared), and mHC's own
parameters, its counts come out to the digits given: total with both vocabulary tables, active with the output's alone.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

#: Bytes per parameter while training: fp32 weight, gradient and AdamW's two moments; with 16-bit copies of weights and
#: gradients where the device computes in 16 bits.
STATE_BYTES = {"fp32": 16, "bf16": 18}


@dataclass(frozen=True)
class Preset:
    """One decoder, and the batch it is trained on.

    layers      of attention and feed-forward each; two residual sites a layer
    C           hidden size
    ffn         width of one expert
    routed, active, shared  experts a layer has, those a token is sent to, and those that every token meets
    heads, head_dim         attention heads and their size without rotation; values have the same size
    kv_rank, rope           size of the compressed key-value, and of the rotated part of queries and keys
    S, B        tokens of a sequence, sequences of a batch
    """

    layers: int
    C: int
    ffn: int
    routed: int
    active: int
    shared: int
    heads: int
    head_dim: int
    kv_rank: int
    rope: int
    vocabulary: int
    S: int
    B: int

    @property
    def sites(self) -> int:
        """Residual sites."""
        return 2 * self.layers

    @property
    def dense_ffn(self) -> int:
        """Width of the first layer's feed-forward."""
        return self.ffn * (self.active + self.shared)

    @property
    def tokens(self) -> int:
        """Tokens of a batch."""
        return self.B * self.S

    def shape(self) -> dict[str, int]:
        """All sizes by name, as a suite's shape."""
        return asdict(self)

    def attention_parameters(self) -> int:
        """Weights of one attention layer: queries, compressed key-value, its expansion, output."""
        queries = self.C * self.heads * (self.head_dim + self.rope)
        compressed = self.C * (self.kv_rank + self.rope)
        expanded = self.kv_rank * self.heads * 2 * self.head_dim
        return queries + compressed + expanded + self.heads * self.head_dim * self.C

    def expert_parameters(self) -> int:
        """Weights of one expert: gate, up and down."""
        return 3 * self.C * self.ffn

    def site_parameters(self, n: int) -> int:
        """mHC's own of one site: projection, biases and gates; 0 for a plain residual (n = 0)."""
        return (n * self.C + 1) * (n * n + 2 * n) + 3 if n else 0

    def norm_parameters(self) -> int:
        """Weights of all norms: one a site, one at the end, one of each compressed key-value."""
        return (self.sites + 1) * self.C + self.layers * self.kv_rank

    def parameters(self, n: int = 0) -> int:
        """All of them, both vocabulary tables included; n streams of mHC, or 0 for a plain residual."""
        return self._parameters(self.routed, n) + 2 * self.vocabulary * self.C

    def active_parameters(self, n: int = 0) -> int:
        """Those that one token is multiplied with, the output's vocabulary table included."""
        return self._parameters(self.active, n) + self.vocabulary * self.C

    def _parameters(self, experts: int, n: int) -> int:
        mixed = (experts + self.shared) * self.expert_parameters() + self.routed * self.C
        dense = 3 * self.C * self.dense_ffn
        layers = self.layers * self.attention_parameters() + (self.layers - 1) * mixed + dense
        return layers + self.sites * self.site_parameters(n) + self.norm_parameters()

    def flops_per_token(self) -> float:
        """Model FLOPs of a token, forward and backward: 6 per active parameter, and attention's products.

        A causal token sees S/2 keys on average; each costs a product with the query and one with the value. Neither
        recomputation nor mHC's own work counts: it is what utilisation is told of.
        """
        products = self.layers * self.heads * (2 * self.head_dim + self.rope) * self.S / 2
        return 6.0 * (self.active_parameters() + products)

    def state_bytes(self, dtype: str, n: int = 0) -> int:
        """Bytes of weights, gradients and AdamW's moments."""
        return self.parameters(n) * STATE_BYTES[dtype]


@functools.cache
def presets() -> Mapping[str, Preset]:
    """All presets by name."""
    data = tomllib.loads((Path(__file__).parent / "presets.toml").read_text(encoding="utf-8"))
    names = [field.name for field in fields(Preset)]
    return {name: Preset(**{key: values[key] for key in names}) for name, values in data.items()}
