"""A projection for people: assumptions, counts, overhead by cause, sensitivity, what the claim needs, memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from perflab.present import units
from perflab.present.sections import Section

from .overhead import CAUSES, PAPERS, VARIANTS, Held, Projection, believed, candidates, held, sensitivity, stated_fields
from .traffic import PARTS, PASSES, STREAMS, Counted, rows

#: The causes in words.
WORDS = {
    "read": "read", "write": "write", "meeting": "adding gradients of x", "products": "products beyond the bytes",
    "launches": "launches", "rebuild": "recompute", "messages": "larger messages", "idle": "idle pipeline",
    "residual": "less plain residual",
}  # fmt: skip


def sections(projection: Projection, timed: Sequence[Any] = ()) -> Iterator[Section]:
    """Everything that the command prints, in order; timed: steps of the same model and machine, as a run has them."""
    yield _assumptions(projection)
    yield _counts(projection)
    yield _variants(projection)
    if found := list(held(projection, timed)):
        yield _held(projection, found)
    yield _sensitivity(projection)
    yield _beliefs(projection)
    yield _memory(projection)


def data(projection: Projection, timed: Sequence[Any] = ()) -> dict[str, Any]:
    """The same in stored units."""
    a = projection.assumptions
    assumed = {
        name: {"value": getattr(a, name), "unit": one.metadata["unit"], "source": a.source(name)}
        for name, one in stated_fields().items()
    }
    return {
        "kind": "projected", "model": projection.model, "machine": projection.machine, "dtype": projection.dtype,
        "streams": STREAMS, "tokens": projection.preset.tokens, "assumptions": assumed,
        "counted": {how.toolkit: _moved(projection, how.toolkit) for how in VARIANTS.values()}, "runs": runs(),
        "baseline_s": projection.baseline(),
        "variants": {
            name: {"seconds": projection.seconds(name), "overhead": projection.overhead(name)} for name in VARIANTS
        },
        "measured": [
            {"variant": one.variant, "run": one.timed.run_id, "implementation": one.timed.implementation,
             "baseline_s": one.timed.baseline_s, "extra_s": one.timed.extra_s, "projected_extra_s": one.projected_s,
             "error": one.error, "utilisation": one.utilisation}
            for one in held(projection, timed)
        ],
        "sensitivity": [
            dict(zip(("assumption", "low", "overhead_low", "high", "overhead_high"), row, strict=True))
            for row in sensitivity(projection)
        ],
        "claim_holds_at": dict(believed(projection)),
        "activation_bytes": projection.activations(), "memory_bytes": projection.memory,
        "own_flops_per_token": projection.products(), "model_flops_per_token": projection.preset.flops_per_token(),
    }  # fmt: skip


def runs() -> list[str]:
    """The runs that the counts come from."""
    return sorted({row["run"] for row in rows() if not row.get("decode")})


def value(name: str, number: float | None) -> str:
    """An assumption's value for people."""
    if number is None:
        return "none"
    unit = stated_fields()[name].metadata["unit"]
    return f"{number / 1e12:.4g} TFLOP/s" if unit == "FLOP/s" else units.value(number, unit)


def _moved(projection: Projection, toolkit: str) -> dict[str, Any]:
    site = Counted(projection.preset.C, projection.dtype).site(toolkit)
    return {part: {pass_: asdict(site[part][pass_]) for pass_ in PASSES} for part in PARTS}


def _assumptions(projection: Projection) -> Section:
    a = projection.assumptions
    return Section(
        f"{projection.model} on {projection.machine}, {STREAMS} streams, {projection.dtype}: assumptions",
        ("assumption", "value", "source"),
        [
            (name, value(name, getattr(a, name)), f"{one.metadata['about']}; {a.source(name)}")
            for name, one in stated_fields().items()
        ],
        [
            f"Each can be given: --assume NAME=VALUE. A step has {projection.preset.B} sequences of "
            f"{projection.preset.S} tokens.",
            "Quoted numbers name the document that has them, and were read at second hand: compare them before a digit "
            "matters.",
        ],
    )


def _counts(projection: Projection) -> Section:
    counted = Counted(projection.preset.C, projection.dtype)
    toolkits = list(dict.fromkeys(how.toolkit for how in VARIANTS.values()))
    sites = {toolkit: counted.site(toolkit) for toolkit in toolkits}
    table = [(f"{WORDS[part]}, {pass_}", *_pair(sites, part, pass_)) for part in PARTS for pass_ in PASSES]
    plain = counted.residual()["forward"]
    table.append(("plain residual, either pass", *(units.size(plain.bytes), str(plain.launches)) * len(toolkits)))
    return Section(
        "Counted, one site: bytes a token, launches a micro-batch",
        ("part", *(f"{toolkit} {what}" for toolkit in toolkits for what in ("bytes", "launches"))),
        table,
        [
            f"eager by dispatch, triton by interpreting its kernels (bytes requested), in {', '.join(runs())}; of "
            f"one call for {counted.tokens()} tokens, which share phi.",
            "Backward of the plain residual adds two gradients of x: the bytes of its forward.",
        ],
    )


def _pair(sites: dict[str, Any], part: str, pass_: str) -> Iterator[str]:
    for site in sites.values():
        yield units.size(site[part][pass_].bytes)
        yield str(site[part][pass_].launches)


def _variants(projection: Projection) -> Section:
    spent = {name: projection.seconds(name) for name in VARIANTS}
    causes = [cause for cause in CAUSES if any(one[cause] for one in spent.values())]
    table = [
        (name, *(f"{'-' if one[cause] < 0 else ''}{units.seconds(abs(one[cause]))}" for cause in causes),
         units.seconds(sum(one.values())), f"{projection.overhead(name):.1%}")
        for name, one in spent.items()
    ]  # fmt: skip
    own, model = projection.products(), projection.preset.flops_per_token()
    return Section(
        f"Projected: extra seconds of a step that takes {units.seconds(projection.baseline())} without mHC, of one "
        "device doing all of it",
        ("variant", *(WORDS[cause] for cause in causes), "in all", "overhead"),
        table,
        [
            f"The model's {model / 1e9:.3g} GFLOP a token are 6 for every parameter that a token uses and those of "
            f"causal attention. mHC's own products are {own / model:.2%} of that and take "
            f"{units.seconds(own * projection.preset.tokens / projection.assumptions.peak)} of a step at the peak, "
            "while bytes move: added is only what is beyond reading, writing and adding.",
            f"Left out: mHC's parameters in the optimiser ({_parameters(projection):.2%} of the model's), expanding "
            "and collapsing the streams at the model's ends, and splitting streams between devices.",
        ],
    )


def _held(projection: Projection, found: Sequence[Held]) -> Section:
    table = [
        (one.variant, one.timed.implementation, units.seconds(one.projected_s), units.seconds(one.timed.extra_s),
         "unknown" if one.error is None else f"{one.error:+.0%}", f"{projection.overhead(one.variant):+.1%}",
         f"{one.at_measured:+.1%}", _measured(one.timed))
        for one in found
    ]  # fmt: skip
    first = found[0]
    return Section(
        f"Projected beside measured, of run {first.timed.run_id}: seconds beyond the plain step, and the overhead",
        ("variant", "measured as", "projected", "measured", "error", "overhead projected",
         "with the plain step as measured", "overhead measured"),
        table,
        [
            f"The plain step took {units.seconds(first.timed.baseline_s)}, measured, a utilisation of "
            f"{first.utilisation:.2g}; projected at {projection.assumptions.utilisation:g} it takes "
            f"{units.seconds(projection.baseline())}.",
            "The projection knows bytes, launches and products, not what a processor does between them: on a small "
            "model, whose arrays fit a cache, it falls short. An error is unknown where the interval holds 0.",
        ],
    )  # fmt: skip


def _measured(timed: Any) -> str:
    if timed.overhead is None:
        return f"{timed.extra_s / timed.baseline_s:+.1%}, no interval"
    return f"{timed.overhead.share:+.1%} [{100 * timed.overhead.low:.1f}, {100 * timed.overhead.high:.1f}]"


def _parameters(projection: Projection) -> float:
    """mHC's share of the parameters."""
    return projection.preset.sites * projection.preset.site_parameters(STREAMS) / projection.preset.parameters(STREAMS)


def _sensitivity(projection: Projection) -> Section:
    table = [
        (name, value(name, low), f"{at_low:.1%}", value(name, high), f"{at_high:.1%}")
        for name, low, at_low, high, at_high in sensitivity(projection)
    ]
    return Section(
        f"Projected: overhead of {PAPERS} ({projection.overhead():.1%}) when one assumption changes",
        ("assumption", "low", "overhead", "high", "overhead"),
        sorted(table, key=lambda row: -abs(float(row[4].rstrip("%")) - float(row[2].rstrip("%")))),
        ["The ends of a range are what its author holds possible, not quoted: they decide the order of this table."],
    )


def _beliefs(projection: Projection) -> Section:
    claim = projection.assumptions.claim
    table = []
    for name, found in believed(projection):
        values = candidates(projection, name)
        tried = f"{value(name, values[0])} to {value(name, values[-1])}"
        if found is None:
            needed = "no value in its range"
        elif isinstance(found, tuple):
            needed = f"between {found[0]} and {found[1]}"
        else:
            needed = value(name, found)
        table.append((name, value(name, getattr(projection.assumptions, name)), needed, tried))
    return Section(
        f"What one would have to believe for {claim:.1%}: {PAPERS}, one assumption changed",
        ("assumption", "now", f"for {claim:.1%}", "tried"),
        table,
        [
            "What overlap hides is assumed, at its best; page Pipeline simulates what it does.",
            *([] if projection.model == "27b" else [f"The paper's {claim:.1%} is of 27b, not of {projection.model}."]),
        ],
    )


def _memory(projection: Projection) -> Section:
    kept, a = projection.activations(), projection.assumptions
    table = [
        (words, units.size(kept[key]), f"{kept[key] / projection.memory:.0%}")
        for key, words in (("kept", "all kept"), ("rebuilt", f"in blocks of {a.block} sites"))
    ]
    return Section(
        "By Table 3: activations of the residual sites on the first pipeline stage",
        ("recomputation", "bytes", f"of {units.size(projection.memory)}"),
        table,
        [
            f"{projection.stage_sites()} sites, {a.pipeline} micro-batches of {a.micro_batch} x {projection.preset.S} "
            "tokens in flight; what layer functions keep themselves, weights and optimiser are not in it."
        ],
    )
