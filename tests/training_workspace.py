"""A workspace whose only stage is a training step of a small network, for tests of the engine alone."""

from __future__ import annotations

from pathlib import Path

STAGE = '''"""Step: one optimiser step of a two-layer network."""

from perflab import Tolerance, TrainingStage

STAGE = TrainingStage(
    dims=("S", "C"),
    tolerances={"fp32": {"loss": Tolerance(1e-5, 1e-4), "grad": Tolerance(1e-3, 1e-2), "update": Tolerance(1e-2, 1e-1)}},
    source="this test",
    baseline="plain",
    presets={"small": {"S": 64, "C": 96}},
    checked_at={"S": 32},
)
'''

REFERENCE = '''"""The network in fp64."""

import torch


def step(state, tokens, shape, times, choices, slack):
    leaves = {name: weight.clone().requires_grad_() for name, weight in state.items()}
    x = torch.nn.functional.one_hot(tokens.cpu(), shape["C"]).double()
    for _ in range(int(times)):
        x = torch.tanh(x @ leaves["first"])
    loss = ((x @ leaves["second"]) ** 2).mean()
    found = torch.autograd.grad(loss, list(leaves.values()))
    return {"loss": loss.detach().reshape(1), **dict(zip(leaves, found))}


def update(before, gradients, choices, memory):
    return {name: before[name] - 0.1 * gradients[name] for name in gradients}
'''

MODEL = '''"""A model whose first layer is applied `times` times, in named parts."""

import torch

from perflab.measure.parts import part


class Model:
    def __init__(self, shape, device, seed, times=1, rate=0.1):
        generator = torch.Generator().manual_seed(seed)
        self.C, self.S, self.times, self.rate = shape["C"], shape["S"], times, rate
        self.weights = {
            name: (torch.randn(self.C, self.C, generator=generator) / self.C**0.5).to(device).requires_grad_()
            for name in ("first", "second")
        }
        self.tokens, self.flops = self.S, 6.0 * 2 * self.C**2 * self.S

    def batch(self, index):
        return torch.randint(self.C, (self.S,), generator=torch.Generator().manual_seed(index))

    def loss(self, tokens):
        with part("embedding"):
            x = torch.nn.functional.one_hot(tokens, self.C).float()
        for _ in range(self.times):
            with part("layers"):
                x = torch.tanh(x @ self.weights["first"])
        with part("head"):
            return ((x @ self.weights["second"]) ** 2).mean()

    def gradients(self, tokens):
        loss = self.loss(tokens)
        found = torch.autograd.grad(loss, list(self.weights.values()))
        return {"loss": loss.detach().reshape(1), **dict(zip(self.weights, found))}

    def step(self, tokens):
        found = self.gradients(tokens)
        with part("optimiser"), torch.no_grad():
            for name, weight in self.weights.items():
                weight -= self.rate * found[name]
        return found["loss"]

    def choices(self):
        return {}

    def state(self):
        return {name: weight.detach().clone() for name, weight in self.weights.items()}
'''

IMPLEMENTATION = '''"""{caption}"""

from ._model import Model

REQUIRES = ("torch",)
CONVENTION = {{"times": "{times}"}}


def step(shape, dtype, device, seed):
    return Model(shape, device, seed, {arguments})
'''

SUITE = """question = "What does a deeper network cost?"
timeout_s = 60

[[group]]
stages = ["toy/step"]
preset = "small"
dtypes = ["fp32"]

[timing]
max_seconds = {seconds}
overhead = {overhead}
"""


def make(folder: Path, seconds: float = 60.0, overhead: float = 5.0) -> Path:
    """The workspace: a baseline, a deeper network, and mistakes in gradient and update."""
    stage = folder / "kernels" / "toy" / "step"
    (stage / "wrong").mkdir(parents=True)
    for name in ("suites", "dashboards"):
        (folder / name).mkdir()
    (stage / "stage.py").write_text(STAGE)
    (stage / "reference.py").write_text(REFERENCE)
    (stage / "_model.py").write_text(MODEL)
    for stem, times, arguments in (
        ("plain", 1, ""), ("deep", 12, "times=12"), ("wrong/told_otherwise", 2, ""), ("wrong/other_rate", 1, "rate=0.05"),
    ):  # fmt: skip
        text = IMPLEMENTATION.format(caption=f"Network {stem}.", times=times, arguments=arguments)
        (stage / f"{stem}.py").write_text(text.replace("from ._model", "from .._model") if "/" in stem else text)
    (folder / "suites" / "quick.toml").write_text(SUITE.format(seconds=seconds, overhead=overhead))
    return folder
