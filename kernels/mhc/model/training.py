"""One model in training: weights, optimiser and batches of real text."""

import functools
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from perflab.measure.parts import part

from .decoder import Decoder, Design
from .memory import check_fits, free_bytes, sizes

#: From the paper's table 5, but for the rate, which is constant.
OPTIMISER = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-20, "weight_decay": 0.1}
#: Parameters that are fp32 in every dtype: coefficients, norms, router.
ALWAYS_FP32 = ("phi", "theta", "a", "b", "g", "router")
ROOT = Path(__file__).resolve().parents[2]


class Training:
    """One model in training.

    tokens  of a step
    flops   the model's of a step: neither recomputation nor the residual design's own work counts

    shape   a preset's sizes, and n
    dtype   fp32, or bf16: matrices and streams in bf16, coefficients' parameters, norms and router in fp32, and the
            optimiser on fp32 weights
    seed    of the weights; those that designs share are the same in all, on one kind of device

    On a CUDA device a step in bf16 never waits for the host; in fp32 the experts' grouped product does.

    Fails: ValueError for a shape, dtype or design that there cannot be, or if memory is short.
    """

    def __init__(self, shape: Mapping[str, int], design: Design, dtype: str, device: str, seed: int) -> None:
        if dtype not in ("fp32", "bf16"):
            raise ValueError(f"dtype: expected fp32 or bf16; got {dtype!r}")
        self.preset, n = sizes(shape)
        check_fits(shape, dtype, free_bytes(device), design)
        self.device, self.tokens = torch.device(device), self.preset.tokens
        self.flops = self.preset.flops_per_token() * self.tokens
        cuda = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda), self.device:
            torch.manual_seed(seed)
            self.model = Decoder(self.preset, n, design)
        self.parameters = dict(self.model.named_parameters())
        #: What the optimiser steps: the parameters themselves, or the fp32 weights that those in bf16 round.
        self.weights: dict[str, Tensor] = {
            name: _lowered(parameter) if dtype == "bf16" and _tail(name) not in ALWAYS_FP32 else parameter
            for name, parameter in self.parameters.items()
        }
        self._start_optimiser()

    def batch(self, index: int) -> Tensor:
        """int64 [B, S + 1]: bytes of the workspace's kernels from random places, the same for all designs."""
        B, S, source = self.preset.B, self.preset.S, text()
        if len(source) <= S:
            raise ValueError(f"shape: S = {S}; expected less than the text's {len(source)} bytes")
        generator = torch.Generator().manual_seed(index)
        starts = torch.randint(len(source) - S, (B, 1), generator=generator)
        return source[starts + torch.arange(S + 1)].long().to(self.device, non_blocking=True)

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean cross-entropy of tokens [B, S + 1], with its graph."""
        return self.model(tokens)

    def gradients(self, tokens: Tensor) -> dict[str, Tensor]:
        """The loss [1], and each parameter's gradient in fp32, without an update."""
        loss = self.loss(tokens)
        found = torch.autograd.grad(loss, list(self.parameters.values()))
        named = {name: gradient.float() for name, gradient in zip(self.parameters, found, strict=True)}
        return {"loss": loss.detach().view(1), **named}

    def step(self, tokens: Tensor) -> Tensor:
        """Forward, backward, update: the loss before it."""
        self.model.zero_grad(set_to_none=True)
        loss = self.loss(tokens)
        loss.backward()
        with part("optimiser"):
            self._update()
        with part("balance"):
            for _, mixture in self.model.mixtures():
                mixture.rebalance()
        return loss.detach()

    def state(self) -> dict[str, Tensor]:
        """Clones of the fp32 weights by parameter name, and of the experts' biases."""
        return {name: value.detach().clone() for name, value in self._state().items()}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over weights and biases; the optimiser starts anew. Fails: ValueError for other names."""
        mine = self._state()
        if mine.keys() != state.keys():
            differing = sorted(mine.keys() ^ state.keys())
            raise ValueError(f"state: {differing[0]} is not in both; load what another's state() gave, of one design")
        for name, value in mine.items():
            value.copy_(state[name])
        self._round()
        self._start_optimiser()

    def choices(self) -> dict[str, Tensor]:
        """The experts [T, active] that each token was sent to in the last forward, by layer."""
        return {name: mixture.chosen for name, mixture in self.model.mixtures()}

    def _state(self) -> dict[str, Tensor]:
        return {**self.weights, **{f"{name}.balance": mixture.balance for name, mixture in self.model.mixtures()}}

    def _start_optimiser(self) -> None:
        self.optimiser = torch.optim.AdamW(self.weights.values(), fused=True, **OPTIMISER)

    @torch.no_grad()
    def _update(self) -> None:
        for name, parameter in self._rounded():
            # One after the other, so that gradients are never there twice.
            self.weights[name].grad, parameter.grad = parameter.grad.float(), None
        self.optimiser.step()
        self._round()
        for name, _ in self._rounded():
            self.weights[name].grad = None

    def _round(self) -> None:
        pairs = [(parameter, self.weights[name]) for name, parameter in self._rounded()]
        if pairs:
            torch._foreach_copy_(*map(list, zip(*pairs, strict=True)))

    def _rounded(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, one) for name, one in self.parameters.items() if one is not self.weights[name]]


def _tail(name: str) -> str:
    return name.rpartition(".")[2]


def _lowered(parameter: nn.Parameter) -> Tensor:
    """The parameter's values in fp32, while itself goes on in bf16."""
    weight = parameter.detach()
    parameter.data = weight.bfloat16()
    return weight


@functools.cache
def text() -> Tensor:
    """The bytes of all sources below kernels/, one after the other in the order of their paths: uint8."""
    return torch.frombuffer(
        bytearray(b"".join(path.read_bytes() for path in sorted(ROOT.rglob("*.py")))), dtype=torch.uint8
    )
