"""Feed-forward layers: a dense SwiGLU, and a mixture of them (DeepSeekMoE) balanced without a loss."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from perflab.measure.parts import part

from ..sites import keeping_inputs
from .attention import matrix
from .presets import Preset

#: How far an expert's bias moves a step: arXiv 2408.15664, section 3.
RATE = 1e-3


class Dense(nn.Module):
    """[..., C] -> [..., C]: down(silu(gate v) * up v)."""

    def __init__(self, C: int, width: int) -> None:
        super().__init__()
        self.up, self.down = matrix(2 * width, C), matrix(C, width)

    def forward(self, v: Tensor) -> Tensor:
        """v [..., C] -> [..., C]."""
        with part("ffn"):
            return functional.linear(swiglu(functional.linear(v, self.up)), self.down)


class Experts(nn.Module):
    """[..., C] -> [..., C]: shared experts for every token, and for each the `active` best of the routed ones.

    balance  [routed], added to the scores when experts are chosen, and only then (arXiv 2408.15664)
    load     [routed], tokens that each expert got in the last forward
    chosen   [T, active], the experts of each token in the last forward

    Tokens are put in the order of their experts, so that all experts are one grouped product. No atomics: rows are
    moved by gathers in both directions, and sums have a fixed order.

    An expert without tokens has gradients of zero on CPUs; torch 2.13's grouped product is reported to give zeros on
    Hopper and remnants of memory on Blackwell (pytorch issue 172439). Not tried here on either.
    """

    balance: Tensor

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.active = preset.active
        self.router = matrix(preset.routed, preset.C)
        self.up = matrix(preset.routed, 2 * preset.ffn, preset.C)
        self.down = matrix(preset.routed, preset.C, preset.ffn)
        self.shared = Dense(preset.C, preset.shared * preset.ffn)
        self.register_buffer("balance", torch.zeros(preset.routed))
        self.load = self.chosen = torch.zeros(0)

    def forward(self, v: Tensor) -> Tensor:
        """v [..., C] -> [..., C]."""
        with part("ffn"):
            tokens = v.flatten(0, -2)
            self.chosen, gates = self._route(tokens)
            return self.shared(v) + self._mix(tokens, self.chosen, gates).view_as(v)

    def _route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The experts [T, active] of each token, and their gates [T, active], which sum to 1; in fp32."""
        # Of the tokens no copy in fp32 is kept.
        scores = keeping_inputs(_scores, tokens, self.router)
        chosen = (scores.detach() + self.balance).topk(self.active).indices
        gates = scores.gather(1, chosen)
        return chosen, gates / gates.sum(1, keepdim=True)

    def _mix(self, tokens: Tensor, chosen: Tensor, gates: Tensor) -> Tensor:
        k = self.active
        experts, order = chosen.flatten().sort(stable=True)
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order), device=order.device)
        # Where each expert's rows end.
        ends = torch.searchsorted(experts, torch.arange(len(self.up), device=experts.device), right=True)
        self.load = ends.diff(prepend=ends.new_zeros(1)).float()
        ends = ends.int()
        rows = _Spread.apply(tokens, order, places, k)
        hidden = swiglu(functional.grouped_mm(rows, self.up.mT, offs=ends))
        # Before the last product, where rows are narrower than after it.
        hidden = hidden * _Spread.apply(gates.reshape(-1, 1).to(hidden.dtype), order, places, 1)
        return _Gather.apply(functional.grouped_mm(hidden, self.down.mT, offs=ends), order, places, k)

    @torch.no_grad()
    def rebalance(self) -> None:
        """Move the biases towards equal loads, by what the last forward saw."""
        self.balance.add_(RATE * (self.load.mean() - self.load).sign())


def swiglu(both: Tensor) -> Tensor:
    """[..., 2 width] -> [..., width]: silu of the first half times the second."""
    gate, up = both.chunk(2, -1)
    return functional.silu(gate) * up


def _scores(tokens: Tensor, router: Tensor) -> Tensor:
    return functional.linear(tokens.float(), router).sigmoid()


def _spread(tokens: Tensor, order: Tensor, k: int) -> Tensor:
    return tokens[order // k]


def _gather(rows: Tensor, places: Tensor, k: int) -> Tensor:
    return rows[places].unflatten(0, (-1, k)).sum(1)


class _Spread(torch.autograd.Function):
    """Every token k times, in the order of experts: [T, C] -> [T k, C]."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, order: Tensor, places: Tensor, k: int) -> Tensor:
        ctx.save_for_backward(places)
        ctx.k = k
        return _spread(tokens, order, k)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _gather(gradient, *ctx.saved_tensors, ctx.k), None, None, None


class _Gather(torch.autograd.Function):
    """The sum of a token's k rows, from the order of experts: [T k, C] -> [T, C]."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, places: Tensor, k: int) -> Tensor:
        ctx.save_for_backward(order)
        ctx.k = k
        return _gather(rows, places, k)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _spread(gradient, *ctx.saved_tensors, ctx.k), None, None, None
