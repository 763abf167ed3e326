"""A decoder cut into the stages of a pipeline, and the share of it that one rank trains."""

import copy
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from perflab.measure.pipeline_orders import STAGES_PER_RANK, order
from perflab.pipeline.actions import ranks_of_stages
from perflab.pipeline.orders import layers_per_stage

from ..hyper_connection import collapse, expand
from ..sites import rms_norm
from .attention import EPS
from .decoder import Decoder, Design
from .experts import Experts
from .training import ALWAYS_FP32, Training, _lowered, _tail


@dataclass(frozen=True)
class Job:
    """A pipeline to run: `replicas` copies of a decoder on p ranks each, m micro-batches a step.

    shape      a preset's sizes, and n; B sequences for each replica
    schedule   1F1B, ZBVZeroBubble or DualPipeV
    steps      the first is not counted as measured: it warms up

    Fails: ValueError for stages that do not divide the layers, or micro-batches that do not divide the sequences.
    """

    shape: Mapping[str, int]
    design: Design
    schedule: str
    p: int
    m: int
    steps: int = 4
    replicas: int = 1
    dtype: str = "fp32"
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.schedule not in STAGES_PER_RANK:
            raise ValueError(f"schedule: expected {', '.join(STAGES_PER_RANK)}; got {self.schedule!r}")
        layers_per_stage(self.shape["layers"], self.stages)
        order(self.schedule, self.p, self.m)
        if self.shape["B"] % self.m:
            raise ValueError(f"pipeline: {self.m} micro-batches do not divide B = {self.shape['B']} sequences")
        if self.steps < 2 or self.replicas < 1:
            raise ValueError(f"pipeline: expected 2 steps or more, and a replica; got {self.steps} and {self.replicas}")

    @property
    def stages(self) -> int:
        """Stages of the pipeline."""
        return self.p * STAGES_PER_RANK[self.schedule]

    @property
    def world(self) -> int:
        """Processes."""
        return self.p * self.replicas

    @property
    def message_shape(self) -> tuple[int, ...]:
        """Streams of a micro-batch between two stages."""
        lead = (self.shape["B"] // self.m, self.shape["S"])
        return (
            (*lead, self.shape["C"])
            if self.design.residual == "residual"
            else (*lead, self.shape["n"], self.shape["C"])
        )

    @property
    def message_bytes(self) -> int:
        """Bytes of a message: as many forward as backward."""
        return torch.Size(self.message_shape).numel() * self.message_dtype.itemsize

    @property
    def message_dtype(self) -> torch.dtype:
        """Of the streams."""
        return torch.bfloat16 if self.dtype == "bf16" else torch.float32

    def to_json(self) -> str:
        """As a file that `from_json` reads."""
        return json.dumps({**vars(self), "shape": dict(self.shape), "design": vars(self.design)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Job":
        """The job of a file."""
        values = json.loads(text)
        return cls(**{**values, "design": Design(**values["design"])})


class Stage(nn.Module):
    """Some sites of a decoder in a row; with the embedding before the first, the head behind the last.

    tokens [B, S] or streams [B, S, ...] -> streams, or logits [B, S, vocabulary] of the last
    """

    def __init__(self, decoder: Decoder, first: int, last: int) -> None:
        super().__init__()
        self.n, self.first = decoder.n, first
        self.embedding = None if first else decoder.embedding
        ends = last == len(decoder.sites.F)
        self.head, self.g = (decoder.head, decoder.g) if ends else (None, None)
        self.sites = _cut(decoder.sites, first, last)
        #: Tokens that each expert got since the step began: balancing sees the whole batch, not its last part.
        self.loads: dict[Experts, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        """x through the stage."""
        if self.embedding is not None:
            x = functional.embedding(x, self.embedding)
            x = expand(x, self.n) if self.n else x
        x = self.sites(x)
        for mixture in self.mixtures():
            self.loads[mixture] = self.loads.get(mixture, 0) + mixture.load
        if self.head is None:
            return x
        return functional.linear(rms_norm(collapse(x) if self.n else x, self.g, EPS), self.head)

    def mixtures(self) -> Iterator[Experts]:
        """The layers that mix experts."""
        return (module for module in self.modules() if isinstance(module, Experts))

    def name_in_decoder(self, name: str) -> str:
        """What a parameter or buffer of this stage is called in the whole decoder."""
        head, _, rest = name.partition("sites.F.")
        index, _, tail = rest.partition(".")
        return name if head or not rest else f"sites.F.{self.first + int(index)}.{tail}"


def _cut(sites: nn.Module, first: int, last: int) -> nn.Module:
    """Sites first to last - 1 as a module of their own; parameters that are stacked by site are copied."""
    part = copy.copy(sites)
    part._parameters = {
        name: None if one is None else nn.Parameter(one[first:last].detach().clone())
        for name, one in sites._parameters.items()
    }
    part._modules = {"F": nn.ModuleList(list(sites.F)[first:last])}
    if part.block is not None:
        part.block = min(part.block, last - first)
    return part


def loss_of(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy of logits [B, S, vocabulary], in fp32."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


def label_of(label: str) -> tuple[int, str]:
    """Stage and kind of an action's label such as `3F0`; the input's part of a backward, I, is a whole B here."""
    found = re.fullmatch(r"(\d+)([FBIW])\d+", label)
    if found is None:
        raise ValueError(f"{label!r} is no action; expected such as 3F0")
    return int(found[1]), "B" if found[2] == "I" else found[2]


class Share(Training):
    """The stages of a decoder that one rank trains: the whole is drawn, so that weights are those of any other cut."""

    def __init__(self, job: Job, rank: int) -> None:
        super().__init__(job.shape, job.design, "fp32", job.device, job.seed)
        sites = 2 * layers_per_stage(job.shape["layers"], job.stages)
        ranks = ranks_of_stages(order(job.schedule, job.p, job.m))
        self.rank = rank
        self.indices = [stage for stage, owner in enumerate(ranks) if owner == rank]
        self.model = nn.ModuleList(Stage(self.model, sites * stage, sites * (stage + 1)) for stage in self.indices)
        self.parameters = dict(self.model.named_parameters())
        self.weights = {
            name: _lowered(one) if job.dtype == "bf16" and _tail(name) not in ALWAYS_FP32 else one
            for name, one in self.parameters.items()
        }
        self._start_optimiser()

    def begin(self) -> None:
        """Forget the step before."""
        self.model.zero_grad(set_to_none=True)
        for stage in self.model:
            stage.loads.clear()

    def update(self, group: Any = None) -> None:
        """The optimiser's step and the experts' balance, by the means and sums of all replicas of the group."""
        loads = [(mixture, load) for stage in self.model for mixture, load in stage.loads.items()]
        if group is not None:
            for one in self.parameters.values():
                dist.all_reduce(one.grad, group=group)
                one.grad.div_(group.size())
            for _, load in loads:
                dist.all_reduce(load, group=group)
        self._update()
        for mixture, load in loads:
            mixture.load = load
            mixture.rebalance()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Updates made inside are taken back; meanwhile weights, biases and moments are kept in the host's memory."""

        def tensors() -> list[Tensor]:
            moments = [one for of_weight in self.optimiser.state.values() for one in of_weight.values()]
            return [*self._state().values(), *moments]

        before, started = [one.detach().to("cpu", copy=True) for one in tensors()], bool(self.optimiser.state)
        yield
        if not started:
            self.optimiser.state.clear()
        with torch.no_grad():
            for one, value in zip(tensors(), before, strict=True):
                one.copy_(value)
            self._round()

    def named(self) -> dict[str, Tensor]:
        """fp32 weights and balances by their stage and the whole decoder's names; of stacked ones the stage's rows."""
        return {key: value.detach().clone() for key, value in self._by_stage(self._state()).items()}

    def gradients_of_step(self) -> dict[str, Tensor]:
        """The last step's gradients, named likewise; none of parameters in 16 bits, which are let go."""
        found = {name: one.grad.clone() for name, one in self.parameters.items() if one.grad is not None}
        return self._by_stage(found)

    def _by_stage(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for name, value in values.items():
            index, _, inside = name.partition(".")
            found[f"{self.indices[int(index)]}:{self.model[int(index)].name_in_decoder(inside)}"] = value
        return found

    def _state(self) -> dict[str, Tensor]:
        buffers = {name: one for name, one in self.model.named_buffers() if _tail(name) == "balance"}
        return {**self.weights, **buffers}


def whole(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The decoder's state from those of all ranks: as Training.state() gives it."""
    rows: dict[str, list[Tensor]] = {}
    merged = {key: value for state in states for key, value in state.items()}
    for key in sorted(merged, key=lambda key: int(key.partition(":")[0])):
        rows.setdefault(key.partition(":")[2], []).append(merged[key])
    stacked = {f"sites.{name}" for name in ("phi", "theta", "a", "b", "g")}
    return {name: torch.cat(parts) if name in stacked else parts[0] for name, parts in rows.items()}
