"""The documented shape of a record: one measured case, one JSON line.

Stored units: seconds, bytes, bytes per second, and 1. Observations only; medians, ratios and verdicts are derived on
reading (`perflab.analyse`).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

SCHEMA_VERSION: Literal[1] = 1

Status = Literal["passed", "wrong", "failed", "skipped"]
Execution = Literal["native", "interpreted", "emulated"]
StopReason = Literal["half_width", "samples", "time_limit"]
Source = Literal["dispatch", "compiler", "interpreted", "counter"]


class Strict(BaseModel):
    """A frozen model that refuses unknown fields."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, validate_by_name=True, validate_by_alias=True
    )


class Reason(Strict):
    """Why a case did not pass: a stable code for programs, a sentence for people."""

    code: str
    text: str


class OutputError(Strict):
    """The error of one output against the fp64 reference, the worst over all draws."""

    max_abs_error: float
    relative_l2_error: float
    elementwise_error: float
    tolerance_l2: float
    tolerance_elementwise: float


class Accuracy(Strict):
    """How right the case is: the worst output first, each output by name, and what was checked.

    shape          the checked shape: an interpreted or emulated case is checked on fewer tokens than it declares
    deterministic  whether two calls gave the same bits; None where that was not tried
    observed       means of the outputs that the contract declares as results by themselves, over the first draw
    """

    max_abs_error: float
    relative_l2_error: float
    tolerance: float
    outputs: dict[str, OutputError]
    shape: dict[str, int]
    draws: int
    deterministic: bool | None
    observed: dict[str, float] = {}


class Latency(Strict):
    """Seconds per call, one number per sample; raw, in the order taken.

    cold         whether the caches were flushed before each sample
    iterations   calls per sample; a sample is the span divided by it
    host_bound   samples, discarded ones included, in which the device waited for the host: they hold host time
    block_starts index of the first sample of each block (blocks of the implementations of one group alternate)
    """

    samples_s: list[float]
    iterations: int
    block_starts: list[int]
    cold: bool
    timer: str
    stop_reason: StopReason
    discarded: int
    host_bound: int = 0


class Bytes(Strict):
    """Bytes read and bytes written."""

    read_bytes: int
    write_bytes: int


class Traffic(Strict):
    """Bytes that one call moves, by one source; `detail` says what the source can tell besides."""

    source: Source
    read_bytes: int
    write_bytes: int
    launches: int
    collector: str
    detail: dict[str, Any] = {}


class Memory(Strict):
    """Bytes kept for backward, and the high-water mark of live bytes; `source` says who counted them."""

    saved_bytes: int | None = None
    peak_bytes: int | None = None
    source: str


class Part(Strict):
    """What one named part of a step took: its share of profiled steps as seconds of a timed one; operations or kernels.

    phase  forward; backward, what differentiation runs; rebuild, what backward computes anew; or update, the optimiser
    """

    name: str
    phase: Literal["forward", "backward", "rebuild", "update"]
    seconds: float
    launches: int


class Span(NamedTuple):
    """What a rank of a pipeline did for a while, in seconds since the step began."""

    rank: int
    stream: str
    begin: float
    end: float
    label: str


class Step(Strict):
    """What an optimiser step is made of, beside its latency.

    tokens, flops  of one step; FLOPs by the model's own count, which recomputation does not raise
    threads        of the CPU that it ran with; None on a GPU, and of a pipeline's processes
    parts          where its time goes: shares by profile of steps between the timed ones, of the timed steps' median
    profiler_s     what profiling one event takes, which the shares do not contain: the group's median, on a CPU
    profile_error  how far a profiled step without that is from plain ones beside it, as a share of them
    predicted_s    a pipeline's step by simulation, which rests on what is `assumed`, by name, in stored units, of the
                   last of the runs that predicted_s is the median of
    simulated      what else that run's simulation gave: bubble, exposed_s, and replayed_s, the step that it makes of
                   what the actions took in the run itself
    measured, predicted  the course of a pipeline's step, as its ranks noted it and as it was simulated
    """

    tokens: int
    flops: float
    threads: int | None = None
    parts: list[Part] = []
    profiler_s: float | None = None
    profile_error: float | None = None
    predicted_s: float | None = None
    assumed: dict[str, float] = {}
    simulated: dict[str, float] = {}
    measured: list[Span] = []
    predicted: list[Span] = []
    collector: str = ""


class KernelReport(Strict):
    """What the compiler says of one kernel."""

    name: str
    registers: int
    spill_bytes: int
    shared_bytes: int


class Compile(Strict):
    """Compilation of the case for `target`; present whenever the compiler ran, even where the case cannot run."""

    seconds: float
    target: str
    kernels: list[KernelReport] = []


class Record(Strict):
    """One case of one run. Accuracy, latency, traffic, memory and step exist exactly when `status` is `passed`.

    label     the preset that the shape comes from, with what differs from it
    baseline  stem of the implementation of the same group that this one is compared with
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    run_id: str
    case_id: str
    stage: str
    implementation: str
    toolkit: str
    pass_: str = Field(alias="pass")
    shape: dict[str, int]
    label: str = ""
    baseline: str = "eager"
    dtype: str
    device: str
    status: Status
    reason: Reason | None = None
    execution: Execution | None = None
    accuracy: Accuracy | None = None
    latency: Latency | None = None
    compulsory: Bytes | None = None
    traffic: list[Traffic] = []
    memory: Memory | None = None
    step: Step | None = None
    compile: Compile | None = None
    warnings: list[str] = []

    @model_validator(mode="after")
    def _numbers_exist_exactly_when_passed(self) -> Record:
        measured = self.accuracy or self.latency or self.traffic or self.memory or self.step
        if self.status == "passed" and not self.accuracy:
            raise ValueError("a passed record needs its accuracy")
        if self.status != "passed" and measured:
            raise ValueError(f"a {self.status} record carries no measurements")
        if (self.status == "passed") == (self.reason is not None):
            raise ValueError("a reason is given exactly when the case did not pass")
        if self.latency and self.execution != "native":
            raise ValueError("only native cases carry a latency")
        return self
