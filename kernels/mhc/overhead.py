"""What n streams add to a training step, projected: counted bytes over a machine's bandwidth, and stated assumptions.

The plain model's step is its FLOPs at a utilisation, which is told of whole steps: norms, plain residuals, the
optimiser, expert and data parallelism and the pipeline's idle time are inside it. mHC adds

    bytes / bandwidth + launches + larger messages that show, each stretched by the pipeline's idle share,

less what the plain residual moves, which it replaces. Seconds are of one device doing the whole step; on many, they are
shared out alike. mHC's own products run while bytes move: what they take at the machine's peak beyond that is added.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from perflab.contract import ITEM_BYTES

from .equation20 import best_block
from .model.presets import Preset, presets
from .traffic import PARTS, PASSES, STREAMS, Counted, Moved

#: Assumptions that do not matter to a device alone.
BETWEEN_DEVICES = ("link", "pipeline", "micro_batches", "exposed", "exposed_overlapped")
#: What a step's extra seconds are spent on, in the order of the tables and charts.
CAUSES = ("read", "write", "meeting", "products", "launches", "rebuild", "messages", "idle", "residual")


def stated(
    about: str, unit: str = "1", default: Any = None, source: str = "", low: Any = None, high: Any = None
) -> Any:
    """A field of `Assumptions`. source: of the default; low, high: values that could be defended, where it has any."""
    metadata = {"about": about, "unit": unit, "source": source, "low": low, "high": high}
    return field(metadata=metadata) if default is None else field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Assumptions:
    """Everything besides the model and the counts that a projection depends on; every number of it stands here."""

    peak: float = stated("dense products of the model's dtype", "FLOP/s")
    bandwidth: float = stated("memory's peak", "B/s")
    link: float | None = stated(
        "between pipeline stages, one direction; none on a machine alone", "B/s", low=25e9, high=450e9
    )
    launch: float = stated("what one more kernel costs while the host is ahead", "s", low=0.0, high=5e-6)
    pipeline: int = stated("pipeline stages", low=1, high=16)
    block: int = stated("sites of a recompute block", low=1, high=16)
    utilisation: float = stated(
        "FLOPs of the model's step, of the peak", default=0.4, low=0.2, high=0.6,
        source="assumed: Llama 3 reports 0.38 to 0.43 in bf16 (quoted, arXiv 2407.21783, table 4)",
    )  # fmt: skip
    achieved: float = stated(
        "bandwidth that mHC's kernels reach, of the peak", default=0.8, low=0.5, high=0.95,
        source="assumed: no kernel of this repository was timed on such a machine",
    )  # fmt: skip
    cached: float = stated(
        "of the counted bytes, what caches absorb", default=0.0, low=0.0, high=0.3,
        source="assumed: nothing, as streams of a large model's micro-batch exceed the caches",
    )  # fmt: skip
    micro_batch: int = stated(
        "sequences of a micro-batch", default=1, low=1, high=8, source="assumed: the paper does not say"
    )
    micro_batches: int = stated(
        "micro-batches of a step and pipeline", default=32, low=8, high=256,
        source="assumed: the paper does not say; idle share (stages - 1) / micro-batches, 1F1B's (DualPipe idles less)",
    )  # fmt: skip
    exposed: float = stated(
        "share of the larger messages that shows without overlap", default=1.0, low=0.0, high=1.0,
        source="assumed: nothing hides them",
    )  # fmt: skip
    exposed_overlapped: float = stated(
        "the same with overlap", default=0.0, low=0.0, high=1.0,
        source="assumed: the paper's extended DualPipe at its best (section 4.3.3); page Pipeline simulates it",
    )  # fmt: skip
    hidden_write: float = stated(
        "share of the feed-forward sites' write that overlap hides, in forward", default=1.0, low=0.0, high=1.0,
        source="assumed: the paper's high-priority stream at its best (section 4.3.3)",
    )  # fmt: skip
    hidden_write_backward: float = stated(
        "the same in backward", default=1.0, low=0.0, high=1.0,
        source="assumed: as forward's; the paper names the kernel, not the pass",
    )  # fmt: skip
    hidden_rebuild: float = stated(
        "share of rebuilding that overlap hides", default=0.0, low=0.0, high=1.0,
        source="assumed: it computes while other kernels could",
    )  # fmt: skip
    claim: float = stated(
        "the overhead to be explained", default=0.067, source="quoted, arXiv 2512.24880, section 4.3: 27B, n = 4"
    )
    #: Who gave each value that is not its default: the machine's source, or the user.
    sources: Mapping[str, str] = field(default_factory=dict)

    def source(self, name: str) -> str:
        """Where the value of that name comes from."""
        return self.sources.get(name) or str(stated_fields()[name].metadata["source"])


def stated_fields() -> dict[str, Any]:
    """The assumptions by name, as dataclass fields with their metadata."""
    return {one.name: one for one in fields(Assumptions) if one.name != "sources"}


@dataclass(frozen=True)
class Variant:
    """How mHC is done: with which kernels, with or without recomputation and overlap."""

    about: str
    toolkit: str
    rebuilt: bool = False
    overlapped: bool = False
    #: The implementation of stage `step` that does it so.
    step: str = ""


VARIANTS = {
    "naive": Variant("eager PyTorch", "eager", step="mhc_eager"),
    "fused": Variant("fused Triton kernels", "triton", step="mhc_triton"),
    "fused + recompute": Variant("and recompute blocks", "triton", rebuilt=True, step="mhc_triton_recompute"),
    "fused + recompute + overlap": Variant("and overlap as assumed", "triton", rebuilt=True, overlapped=True),
}
PAPERS = "fused + recompute + overlap"


@dataclass(frozen=True)
class Projection:
    """One model on one machine under one set of assumptions."""

    model: str
    preset: Preset
    machine: str
    dtype: str
    memory: float
    assumptions: Assumptions

    def baseline(self) -> float:
        """Seconds of the plain model's step."""
        return (
            self.preset.flops_per_token() * self.preset.tokens / (self.assumptions.peak * self.assumptions.utilisation)
        )

    def seconds(self, variant: str) -> dict[str, float]:
        """Extra seconds of a step by cause; the plain residual's are negative."""
        how, a, preset = VARIANTS[variant], self.assumptions, self.preset
        counted = Counted(preset.C, self.dtype)
        site = counted.site(how.toolkit)
        parts = {part: sum((site[part][pass_] for pass_ in PASSES), Moved()).times(preset.sites) for part in PARTS}
        residual = sum(counted.residual().values(), Moved()).times(preset.sites)
        rebuilt = self._rebuilt(counted) if how.rebuilt else Moved()
        launches = sum((*parts.values(), rebuilt), Moved()).launches - residual.launches

        spent = {part: self._moving(parts[part]) for part in PARTS}
        own = self.products() * preset.tokens / a.peak
        spent["products"] = max(0.0, own - sum(spent.values()))
        spent["rebuild"] = self._moving(rebuilt)
        spent["residual"] = -self._moving(residual)
        if how.overlapped:
            # Of two sites of a layer one is a feed-forward's.
            shares = {"forward": a.hidden_write, "backward": a.hidden_write_backward}
            hidden = sum(self._moving(site["write"][pass_]) * share for pass_, share in shares.items())
            spent["write"] -= hidden * preset.layers
            spent["rebuild"] *= 1 - a.hidden_rebuild
        spent["launches"] = launches * preset.B / a.micro_batch * a.launch
        spent["messages"] = self._messages() * (a.exposed_overlapped if how.overlapped else a.exposed)
        spent["idle"] = sum(spent.values()) * (a.pipeline - 1) / a.micro_batches
        return {cause: spent[cause] for cause in CAUSES}

    def overhead(self, variant: str = PAPERS) -> float:
        """Extra seconds over the plain model's."""
        return sum(self.seconds(variant).values()) / self.baseline()

    def with_(self, **values: float) -> Projection:
        """The same under other assumptions. Fails: ValueError for one that cannot be."""
        return replace(self, assumptions=replace(self.assumptions, **values)).checked()

    def checked(self) -> Projection:
        """Itself. Fails: ValueError for an assumption that cannot be: which, and what could."""
        a, layers = self.assumptions, self.preset.layers
        for name, one in stated_fields().items():
            value, share = getattr(a, name), one.metadata["unit"] == "1" and one.type == "float"
            if value is None:
                continue
            if one.type == "int" and type(value) is not int:
                raise ValueError(f"{name}: expected a whole number, got {value:g}")
            if not math.isfinite(value) or value < 0 or (value == 0 and one.metadata["low"] != 0):
                least = "at least" if one.metadata["low"] == 0 else "more than"
                raise ValueError(f"{name}: expected {least} 0, got {value:g}")
            if share and value > 1:
                raise ValueError(f"{name}: expected a share of at most 1, got {value:g}")
        if layers % a.pipeline:
            raise ValueError(f"pipeline: {a.pipeline} stages do not divide {layers} layers; {divisors(layers)} do")
        if a.pipeline > 1 and a.link is None:
            raise ValueError(f"pipeline: machine {self.machine} has no link to others; give link, or one stage")
        if self.preset.B % a.micro_batch:
            raise ValueError(f"micro_batch: {a.micro_batch} does not divide the batch of {self.preset.B} sequences")
        if a.micro_batch * a.micro_batches > self.preset.B:
            most = self.preset.B // a.micro_batch
            raise ValueError(
                f"micro_batches: the batch of {self.preset.B} sequences has {most} of {a.micro_batch} at most"
            )
        if a.block > self.preset.sites // a.pipeline:
            raise ValueError(f"block: a pipeline stage has {self.preset.sites // a.pipeline} sites, got {a.block}")
        return self

    def stage_sites(self) -> int:
        """Residual sites of one pipeline stage, which no recompute block leaves."""
        return self.preset.sites // self.assumptions.pipeline

    def activations(self) -> dict[str, float]:
        """Table 3 on the first stage, which holds a micro-batch for every stage: bytes kept without and with blocks."""
        a, n = self.assumptions, STREAMS
        tokens = a.micro_batch * self.preset.S * self.preset.C * ITEM_BYTES[self.dtype]
        sites, blocks = self.stage_sites(), math.ceil(self.stage_sites() / a.block)
        # Kept of a site: its streams, the read, the read normalised, F's output.
        return {
            "kept": float(a.pipeline * tokens * (n + 3) * sites),
            "rebuilt": float(tokens * (a.pipeline * (n * blocks + sites) + (n + 2) * a.block)),
        }

    def products(self) -> float:
        """mHC's own FLOPs of a token, forward and backward: projection, read, write; two of each weight and pass."""
        n, C = STREAMS, self.preset.C
        forward = 2 * n * C * (n * n + 2 * n) + 2 * n * C + 2 * n * (n + 1) * C
        # As of any product, backward has twice forward's.
        return float((len(PASSES) + 1) * forward * self.preset.sites)

    def _rebuilt(self, counted: Counted) -> Moved:
        """Every block of every stage, and the norm of every read, which reads and writes it once."""
        sites, block = self.stage_sites(), self.assumptions.block
        whole, rest = divmod(sites, block)
        moved = counted.rebuild(block).times(whole) + (counted.rebuild(rest) if rest else Moved())
        norm = Moved(float(2 * self.preset.C * ITEM_BYTES[self.dtype]), 1)
        return (moved + norm.times(sites)).times(self.assumptions.pipeline)

    def _moving(self, moved: Moved) -> float:
        """Seconds that a step takes to move that much of every token."""
        a = self.assumptions
        return moved.bytes * self.preset.tokens * (1 - a.cached) / (a.bandwidth * a.achieved)

    def _messages(self) -> float:
        """Seconds that the streams' larger messages take, forward and backward, over the plain residual's."""
        a = self.assumptions
        if a.link is None:
            return 0.0
        more = (STREAMS - 1) * self.preset.C * ITEM_BYTES[self.dtype]
        return len(PASSES) * (a.pipeline - 1) * self.preset.tokens * more / a.link


def project(model: str, machine: Any, given: Mapping[str, float] | None = None, link: str = "network") -> Projection:
    """A projection with the machine's numbers, the defaults, and what is given, by name.

    machine  a `perflab.machines.Machine`
    link     what carries messages between pipeline stages: network or nvlink

    Fails: ValueError for an unknown model or assumption, or one that cannot be.
    """
    given = dict(given or {})
    if model not in presets():
        raise ValueError(f"unknown model {model!r}: there are {', '.join(presets())}")
    if unknown := sorted(set(given) - set(stated_fields())):
        raise ValueError(f"unknown assumption {unknown[0]!r}: there are {', '.join(stated_fields())}")
    preset, lane = presets()[model], getattr(machine, link)
    other = {"network": "nvlink", "nvlink": "network"}[link]
    if lane is None and "link" not in given and getattr(machine, other):
        raise ValueError(f"link: machine {machine.name} has no {link}, but {other}; choose that, or give link")
    told = {"peak": machine.peak, "bandwidth": machine.bandwidth, "launch": machine.launch}
    values: dict[str, Any] = {name: one.value for name, one in told.items()} | {"link": lane.value if lane else None}
    sources = {name: f"{machine.name}: {one.source}" for name, one in told.items()}
    sources["link"] = f"{machine.name}, {link}: {lane.source}" if lane else f"{machine.name} is alone"
    # Eight devices share a box; the paper gives no depth.
    most = min(8, preset.B)
    values["pipeline"] = max(d for d in divisors(preset.layers) if d <= most) if lane else 1
    sources["pipeline"] = (
        "assumed: the largest divisor of the layers up to 8; the paper does not say" if lane else "alone"
    )
    size = max(1, int(given.get("micro_batch", stated_fields()["micro_batch"].default)))
    values["micro_batches"] = max(1, min(stated_fields()["micro_batches"].default, preset.B // size))
    if not lane:
        values |= {"micro_batch": preset.B, "micro_batches": 1}
        sources |= dict.fromkeys(("micro_batch", "micro_batches"), "alone: the whole batch at once")
    values |= given
    if "block" not in given:
        values["block"] = best_block(preset.sites // (stages := max(1, int(values["pipeline"]))), STREAMS, stages)
        sources["block"] = "equation 20 on a stage, with a micro-batch in flight for every stage"
    assumed = Assumptions(**values, sources=sources | dict.fromkeys(given, "given"))
    return Projection(model, preset, machine.name, machine.dtype, machine.memory.value, assumed).checked()


def as_steps() -> dict[str, str]:
    """The variants that stage `step` has, by the implementation that does it so."""
    return {one.step: name for name, one in VARIANTS.items() if one.step}


class Held(NamedTuple):
    """A variant's projection beside the same step as a run timed it: seconds beyond the plain step's.

    utilisation  that the plain step reached, of the projection's peak
    at_measured  overhead projected with that utilisation in place of the assumed one
    """

    variant: str
    timed: Any
    projected_s: float
    utilisation: float
    at_measured: float

    @property
    def error(self) -> float | None:
        """Of the projected seconds, over the measured; None where no longer step was measured for sure."""
        sure = self.timed.overhead is not None and self.timed.overhead.low > 0
        return self.projected_s / self.timed.extra_s - 1 if sure and self.timed.extra_s > 0 else None


def held(projection: Projection, timed: Iterable[Any]) -> Iterator[Held]:
    """The variants that were timed; timed: `perflab.analyse.steps.TimedStep`s of the projection's model and machine."""
    by_step = as_steps()
    for one in timed:
        if one.implementation not in by_step or one.dtype != projection.dtype:
            continue
        variant = by_step[one.implementation]
        spent = sum(projection.seconds(variant).values())
        utilisation = one.flops / (projection.assumptions.peak * one.baseline_s)
        yield Held(variant, one, spent, utilisation, spent / one.baseline_s)


def sensitivity(projection: Projection, variant: str = PAPERS) -> Iterator[tuple[str, float, float, float, float]]:
    """(name, low, its overhead, high, its overhead) of each assumption that has a range, the others as they are."""
    for name in stated_fields():
        values = candidates(projection, name)
        if values:
            ends = values[0], values[-1]
            low, high = (projection.with_(**{name: value}).overhead(variant) for value in ends)
            yield name, ends[0], low, ends[1], high


def believed(projection: Projection, variant: str = PAPERS) -> Iterator[tuple[str, float | tuple[int, int] | None]]:
    """For each assumption with a range: its value at which the claim comes out, the others as they are.

    Two values where it takes whole numbers and the claim falls between theirs; None where no value of its range does.
    """
    claim = projection.assumptions.claim
    for name, one in stated_fields().items():
        values = candidates(projection, name)
        found = [projection.with_(**{name: value}).overhead(variant) - claim for value in values]
        at = next(
            (i for i in range(len(values) - 1) if found[i] * found[i + 1] <= 0 and found[i] != found[i + 1]), None
        )
        if not values:
            continue
        if at is None:
            yield name, None
        elif one.type == "int":
            yield name, (values[at], values[at + 1])
        else:
            yield name, _crossing(projection, (name, variant), values[at], values[at + 1])


def _crossing(projection: Projection, what: tuple[str, str], low: float, high: float) -> float:
    """Where the claim comes out between two values, by halving."""
    name, variant = what

    def above(value: float) -> bool:
        return projection.with_(**{name: value}).overhead(variant) > projection.assumptions.claim

    first = above(low)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle) == first else (low, middle)
    return (low + high) / 2


def candidates(projection: Projection, name: str) -> list[Any]:
    """The values of an assumption's range that can be tried: its ends, or all whole numbers that fit the model."""
    one, a, preset = stated_fields()[name], projection.assumptions, projection.preset
    low, high = one.metadata["low"], one.metadata["high"]
    if low is None or (a.link is None and name in BETWEEN_DEVICES):
        return []
    if name == "pipeline":
        return [d for d in divisors(preset.layers) if d <= high and preset.sites // d >= a.block]
    if name == "block":
        return list(range(low, min(high, projection.stage_sites()) + 1))
    if name == "micro_batch":
        return [size for size in range(low, high + 1) if preset.B % size == 0 and size * a.micro_batches <= preset.B]
    if name == "micro_batches":
        return list(range(low, min(high, preset.B // a.micro_batch) + 1))
    return [low, high]


def divisors(number: int) -> list[int]:
    """Its divisors, in order."""
    return [d for d in range(1, number + 1) if number % d == 0]
