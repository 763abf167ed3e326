"""A pipeline's step, rank by rank: forwards, backwards, what is rebuilt, and the waits between them.

The first panels are projected: the 27B model on five ranks with two stages each (DualPipeV), plain, and with mHC,
without and with the paper's measures. Panels below them are of the run's own pipelines, if it has any: a step as its
ranks noted it, and as it was simulated. White is waiting.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import plotly.graph_objects as go

from perflab.catalogue import load_module
from perflab.pipeline.actions import Order, from_text
from perflab.pipeline.orders import layers_per_stage
from perflab.pipeline.simulate import Durations, Execution, Link, Play, measures, simulate
from perflab.present import panels, units
from perflab.present.figure import bare

from . import _subject

PAGE, ORDER = "Pipeline", 1
MACHINE, STREAMS, RANKS = "h100", 4, 5
#: Assumed: seconds before a message's first byte, and what share of its speed a backward keeps beside a write.
#: Utilisation and the share of the memory's bandwidth are those that `perflab overhead` assumes.
LATENCY, BESIDE = 10e-6, 0.5
COLOURS = {
    "forward": "#0072b2", "backward": "#d55e00", "forward and backward": "#cc79a7", "rebuilt": "#009e73",
    "priority stream": "#56b4e9", "update": "#7f7f7f",
}  # fmt: skip
_LINE, _RANK, _FOOT, _LEGEND = 18, 26, 56, 64  # pixels: a line of words, a rank, an axis, the legend
_WIDTH = 52  # characters that fit a phone

#: A panel: its words, and what each rank did: (rank, stream, begin, end, label).
Panel = tuple[list[str], list[tuple[int, str, float, float, str]]]


def pipeline_timeline(frame: pandas.DataFrame, about: dict[str, Any]) -> go.Figure | None:
    """A panel per step; None in a workspace without this subject whose run has no pipeline."""
    ahead = list(projected())
    drawn = [(_wrapped(words), events) for words, events in (*ahead, *noted(frame))]
    if not drawn:
        return None
    heights = [_LINE * len(words) + _RANK * _ranks(events) + _FOOT for words, events in drawn]
    total, top = sum(heights), 0
    figure = bare(
        height=total + _LEGEND, margin={"l": 8, "r": 8, "t": _LEGEND, "b": 0}, barmode="overlay", bargap=0,
        meta={"notes": notes() if _subject.KERNELS.is_dir() else []},
    )  # fmt: skip
    named: set[str] = set()
    longest = max((end for _, events in ahead for *_, end, _ in events), default=0)
    for number, ((words, events), height) in enumerate(zip(drawn, heights, strict=True), 1):
        lines = _LINE * len(words)
        domain = (1 - (top + height - _FOOT) / total, 1 - (top + lines) / total)
        # Projected panels have one axis, so that their lengths compare.
        _axes(figure, number, domain, longest if number <= len(ahead) else max(end for *_, end, _ in events))
        title, *rest = map(panels.plain, words)
        figure.add_annotation(
            text="<br>".join([f"<b>{title}</b>", *rest]),
            showarrow=False, align="left", xref="paper", x=0, xanchor="left", yref="paper", y=1 - top / total,
            yanchor="top",
        )  # fmt: skip
        figure.add_traces(list(_bars(events, number, named)))
        top += height
    return figure


def projected() -> Iterator[Panel]:
    """The plain step, and mHC's without and with the measures."""
    if not _subject.KERNELS.is_dir():
        return
    plain, found, small = _plain(interleaved=True), mhc(), mhc(streams_sent=1)
    yield [f"projected: {_subject.MODEL}, plain residual", _told(plain, None)], plain.timeline
    off, on = Execution(interleaved=True, beside=BESIDE), Execution(True, True, BESIDE, True, True)
    for one, words in ((off, f"mHC with {STREAMS} streams"), (on, "mHC, with all three measures")):
        told = [_told(found[one], plain), f"with messages no larger than plain's {_over(small[one], plain)}"]
        if one is on:
            told += [f"{_measures(each)}: {_over(play, plain)}" for each, play in found.items()]
            told.append(_in_turn())
        yield [f"projected: {_subject.MODEL}, {words}", *told], found[one].timeline


def noted(frame: pandas.DataFrame) -> Iterator[Panel]:
    """Steps of the run's own pipelines: measured, then simulated from what ranks took one at a time."""
    if "record" not in frame:
        return
    for case in frame.itertuples(index=False):
        step = getattr(case.record, "step", None)
        if step is None or not step.predicted:
            continue
        name = f"{case.implementation} {case.shape}"
        if step.measured:
            yield [f"measured: {panels.clip(name, _WIDTH - 10)}"], [tuple(span) for span in step.measured]
        words = (
            f"{units.seconds(step.predicted_s)}, the median over runs, from what ranks took one at a time, and one "
            "message; drawn is the last run's"
        )
        yield [f"simulated: {panels.clip(name, _WIDTH - 11)}", words], [tuple(span) for span in step.predicted]


def link() -> Link:
    """What carries messages between ranks: the machine's network."""
    network = _subject.quoted(MACHINE).network
    assert network, "a machine of a pipeline has one"
    return Link(network.value, LATENCY)


@functools.cache
def order() -> Order:
    """DualPipeV of torch, kept as a file so that no tensor library is needed."""
    return from_text(Path(__file__).with_name("pipeline_dualpipev.csv").read_text(encoding="utf-8"))


def mhc(*, streams_sent: int = STREAMS, interleaved: bool = True) -> dict[Execution, Play]:
    """The step with each of the measures off and on."""
    base = Execution(interleaved=interleaved, beside=BESIDE)
    return measures(order(), durations(STREAMS), link(), message_bytes(streams_sent), base)


def _plain(*, interleaved: bool) -> Play:
    return simulate(order(), durations(0), link(), message_bytes(0), Execution(interleaved=interleaved))


def _in_turn() -> str:
    """What becomes of it where an overlapping backward follows its forward, whose message then travels beside it."""
    plain, (first, *_, last) = _plain(interleaved=False), mhc(interleaved=False).values()
    told = f"none {_over(first, plain)}, all {_over(last, plain)}"
    return f"where a backward follows its forward, as torch plays them: {told}"


def message_bytes(n: int) -> int:
    """Streams of one sequence in bf16; n = 0 is the plain residual."""
    preset = _preset()
    return int(2 * preset.S * max(n, 1) * preset.C)


def durations(n: int) -> list[Durations]:
    """Projected seconds of a micro-batch of one sequence in each stage; n = 0 is the plain residual.

    Model FLOPs in three equal parts, spread evenly over stages, at the assumed utilisation; sites' bytes are the fewest
    that the contracts of their stages allow, at the share of the memory's bandwidth assumed.
    """
    preset, rate = _preset(), _assumed("utilisation") * _subject.quoted(MACHINE).peak.value
    sites = 2 * layers_per_stage(preset.layers, 2 * RANKS)
    part = preset.flops_per_token() * preset.S / (3 * 2 * RANKS * rate)
    # A layer's attention in backward: two products for each of the forward's.
    kernel = 4 * preset.heads * (2 * preset.head_dim + preset.rope) * preset.S**2 / 2 / rate
    shape = {"T": preset.S, "n": n, "C": preset.C}
    if not n:
        # Backward adds two gradients where forward adds two streams.
        moved = sites * _moved("residual", shape, "forward")
        return [Durations(part + moved, part + moved, part, kernel=kernel)] * (2 * RANKS)
    write = sites * _moved("post_res", shape, "forward")
    forward = part + write + sites * _moved("read", shape, "forward")
    backward = part + sites * (_moved("read", shape, "backward") + _moved("post_res", shape, "backward"))
    block = min(load_module(_subject.KERNELS / "equation20.py").best_block(preset.sites, n), sites)
    rebuilt = _moved("recompute", {**shape, "L": block}, "forward")
    # Only the block that a backward begins with is rebuilt before it; the others in its course.
    one = Durations(
        forward, backward + (sites / block - 1) * rebuilt, part, recompute=rebuilt, tail=write / 2, kernel=kernel
    )
    return [one] * (2 * RANKS)


def notes() -> list[str]:
    """What the projected panels rest on."""
    preset, machine = _preset(), _subject.quoted(MACHINE)
    return [
        f"projected, not measured: {preset.layers} layers on {RANKS} ranks with two stages each, {_micro_batches()} "
        f"micro-batches of {preset.S} tokens; a forward and a backward that overlap alternate kernel by kernel and end "
        "together",
        f"quoted: {machine.about}, {machine.peak.value / 1e12:.0f} TFLOP/s, {machine.bandwidth.value / 1e12:.2f} TB/s, "
        f"network {link().bandwidth / 1e9:.0f} GB/s; `perflab overhead --machine {MACHINE}` names the sources",
        f"assumed: {_assumed('utilisation'):.0%} of peak while a rank computes (`perflab overhead` assumes it of whole "
        f"steps, idle time included), {_assumed('achieved'):.0%} of the memory's bandwidth, "
        f"{units.seconds(LATENCY)} before a message's first byte, a backward keeps {BESIDE:.0%} of its speed beside a "
        "write; experts' exchange, embedding and optimiser are left out",
        "bytes: by the contracts of mhc/residual, read, post_res and recompute, the fewest possible, in bf16; no "
        "kernel was counted for this page",
        "measures: stream, the feed-forward sites' write on a stream of its own, beside the backward that overlaps; "
        "preemption, that write does not wait for the backward's longest kernel; early rebuilding, blocks are rebuilt "
        "while the cotangent is still awaited",
        "messages decide: a forward and a backward that end together send both messages at their end, where the next "
        "rank waits for them; a backward that follows its forward hides the forward's. `perflab overhead` assumes that "
        "none shows, at its best",
    ]


def _micro_batches() -> int:
    return 1 + max(action.micro_batch for moves in order() for move in moves for action in move)


def _preset() -> Any:
    return load_module(_subject.KERNELS / "model" / "presets.py").presets()[_subject.MODEL]


def _assumed(name: str) -> float:
    return float(load_module(_subject.KERNELS / "overhead.py").stated_fields()[name].default)


def _moved(stage: str, shape: dict[str, int], pass_: str) -> float:
    contract = load_module(_subject.KERNELS / stage / "stage.py").STAGE
    reached = _assumed("achieved") * _subject.quoted(MACHINE).bandwidth.value
    return float(contract.compulsory(shape, "bf16", pass_).total_bytes / reached)


def _told(play: Play, plain: Play | None) -> str:
    over = f", {_over(play, plain)}" if plain else ""
    exposed = max(play.exposed_s) / play.step_s
    return f"{units.seconds(play.step_s)}{over}; idle {play.bubble:.1%}, messages waited for up to {exposed:.1%}"


def _over(play: Play, plain: Play) -> str:
    return f"{play.step_s / plain.step_s - 1:+.1%} over plain"


def _measures(one: Execution) -> str:
    switches = {"stream": one.priority_stream, "preemption": one.preemptible, "early rebuilding": one.early_recompute}
    return " + ".join(name for name, on in switches.items() if on) or "none"


def _wrapped(words: list[str]) -> list[str]:
    return [line for one in words for line in textwrap.wrap(one, _WIDTH)]


def _ranks(events: list[tuple[int, str, float, float, str]]) -> int:
    return 1 + max(rank for rank, *_ in events)


def _kind(stream: str, label: str) -> str:
    if stream == "priority":
        return "priority stream"
    if "update" in label:
        return "update"
    if " " in label:
        return "forward and backward"
    return "forward" if "F" in label else "rebuilt" if "R" in label else "backward"


def _bars(events: list[tuple[int, str, float, float, str]], number: int, named: set[str]) -> Iterator[dict[str, Any]]:
    by_kind: dict[str, list[tuple[int, float, float, str]]] = {}
    for rank, stream, begin, end, label in events:
        if stream != "send":
            by_kind.setdefault(_kind(stream, label), []).append((rank, begin, end, label))
    for kind in (kind for kind in COLOURS if kind in by_kind):
        bars = by_kind[kind]
        narrow = kind == "priority stream"
        yield {
            "type": "bar", "orientation": "h", "name": kind, "legendgroup": kind, "showlegend": kind not in named,
            "x": [end - begin for _, begin, end, _ in bars], "base": [begin for _, begin, _, _ in bars],
            "y": [rank for rank, *_ in bars], "width": 0.25 if narrow else 0.8, "xaxis": f"x{number}",
            "yaxis": f"y{number}", "marker": {"color": COLOURS[kind], "line": {"width": 0.5, "color": "#ffffff"}},
            "hoverinfo": "text",
            "hovertext": [
                panels.hover(f"rank {rank}: {label}", f"{units.seconds(end - begin)} from {units.seconds(begin)}")
                for rank, begin, end, label in bars
            ],
        }  # fmt: skip
        named.add(kind)


def _axes(figure: go.Figure, number: int, domain: tuple[float, float], longest: float) -> None:
    figure.update_layout({
        f"xaxis{number}": {
            "anchor": f"y{number}", "fixedrange": True, "zeroline": False, "range": [0, longest * 1.01], "nticks": 6,
            "tickformat": "~s", "ticksuffix": "s", "title": {"text": "seconds of the step", "standoff": 4},
        },
        f"yaxis{number}": {
            "anchor": f"x{number}", "fixedrange": True, "zeroline": False, "domain": domain, "autorange": "reversed",
            "dtick": 1, "tickprefix": "rank ", "automargin": True,
        },
    })  # fmt: skip
