"""A DeepSeek-V3 style decoder in three residual designs: plain, hyper-connections, mHC; with or without recompute."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from perflab.measure.parts import part

from ..equation20 import best_block
from ..hyper_connection import GATE, HyperConnection, collapse, expand
from ..sites import KITS, Kit, Site, rms_norm, run_sites
from .attention import EPS, Attention, matrix
from .experts import Dense, Experts
from .presets import Preset

RESIDUALS = ("residual", "hc", "mhc")


@dataclass(frozen=True)
class Design:
    """How layers are connected, by which toolkit, and whether backward rebuilds what lies between layer functions.

    residual   residual: x + F(norm(x)), without a toolkit; hc: hyper-connections that nothing constrains; mhc
    toolkit    eager, compiled, triton or tilelang; for hc that of the write and the rebuilding
    recompute  in the blocks that equation 20 of arXiv 2512.24880 finds best
    """

    residual: str
    toolkit: str = "eager"
    recompute: bool = False

    def __post_init__(self) -> None:
        if self.residual not in RESIDUALS:
            raise ValueError(f"residual: expected {', '.join(RESIDUALS)}; got {self.residual!r}")
        if self.toolkit not in KITS:
            raise ValueError(f"toolkit: expected {', '.join(KITS)}; got {self.toolkit!r}")


class Decoder(nn.Module):
    """Tokens [B, S + 1] -> mean cross-entropy of every next token.

    The weights that all designs have are drawn first, in one order: from one seed they are the same in all.
    """

    def __init__(self, preset: Preset, n: int, design: Design) -> None:
        super().__init__()
        p = preset
        self.n = 0 if design.residual == "residual" else n
        self.embedding, self.head = matrix(p.vocabulary, p.C), matrix(p.vocabulary, p.C)
        self.g = nn.Parameter(torch.ones(p.C))
        layers: list[nn.Module] = []
        for layer in range(p.layers):
            layers += [Attention(p), Experts(p) if layer else Dense(p.C, p.dense_ffn)]
        self.sites = _sites(layers, p.C, n, design)

    def forward(self, tokens: Tensor) -> Tensor:
        """The loss, in fp32, with its graph."""
        with part("embedding"):
            x = functional.embedding(tokens[:, :-1], self.embedding)
        if self.n:
            with part("expand"):
                x = expand(x, self.n)
        x = self.sites(x)
        if self.n:
            with part("collapse"):
                x = collapse(x)
        with part("head"):
            logits = functional.linear(rms_norm(x, self.g, EPS), self.head)
            return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    def mixtures(self) -> Iterator[tuple[str, Experts]]:
        """The layers that mix experts, by name."""
        for name, module in self.named_modules():
            if isinstance(module, Experts):
                yield name, module


def _sites(layers: list[nn.Module], C: int, n: int, design: Design) -> nn.Module:
    if design.residual == "mhc":
        block = "best" if design.recompute else None
        return HyperConnection(layers, n, C, design.toolkit, block, norm_eps=EPS)
    if design.residual == "hc":
        return Unconstrained(layers, n, C, design)
    return Plain(layers, C, design.recompute)


class Plain(nn.Module):
    """Residual sites x <- x + F(norm(x)): [B, S, C] -> [B, S, C]."""

    kit = Kit("model.plain", "model.plain", "model.plain")

    def __init__(self, F: Sequence[nn.Module], C: int, recompute: bool, n: int = 1) -> None:
        super().__init__()
        self.F = nn.ModuleList(F)
        self.g = nn.Parameter(torch.ones(len(F), C))
        self.block = best_block(len(F), n) if recompute else None

    def forward(self, x: Tensor) -> Tensor:
        """x [B, S, ...] through all sites."""
        shape = (*x.shape[:2], x.shape[-1])
        sites = [
            Site(*parameters, _on_tokens(F, shape), _norm(g))
            for parameters, F, g in zip(self._parameters_of_sites(), self.F, self.g, strict=True)
        ]
        return run_sites(self.kit, sites, x.flatten(0, 1), self.block).view_as(x)

    def _parameters_of_sites(self) -> Iterator[Sequence[Tensor]]:
        """What a site has of its own: nothing."""
        none = self.g.new_empty(0)
        return iter([(none, none, none)] * len(self.F))


class Unconstrained(Plain):
    """Sites of hyper-connections (arXiv 2409.19606): [B, S, n, C] -> [B, S, n, C].

    At the start every stream stays itself, is read with weight 1/n and written with weight 1, as in mHC here.
    """

    def __init__(self, F: Sequence[nn.Module], n: int, C: int, design: Design) -> None:
        super().__init__(F, C, design.recompute, n)
        kit = KITS[design.toolkit]
        self.kit = Kit("model.unconstrained", kit.writes, kit.rebuilds, lean=False)
        # Unit variance before the tanh, whatever C.
        self.theta = nn.Parameter(torch.empty(len(F), C, n + 2).normal_(std=1 / math.sqrt(C)))
        self.a = nn.Parameter(torch.full((len(F), 3), GATE))
        start = torch.cat([torch.full((n,), 1 / n), torch.ones(n), torch.eye(n).flatten()])
        self.b = nn.Parameter(start.repeat(len(F), 1))

    def _parameters_of_sites(self) -> Iterator[Sequence[Tensor]]:
        return zip(self.theta, self.a, self.b, strict=True)


def _on_tokens(F: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """F, which wants [B, S, C], on tokens in one row."""
    return lambda v: F(v.view(shape)).view(v.shape)


def _norm(g: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda u: rms_norm(u, g, EPS)
