"""A step of a pipeline, played action by action: who computes, who waits, and for what.

A rank plays its moves one after the other. A forward waits for the streams of the stage before, a backward for the
cotangent of the stage after. Between ranks these are messages, which a rank sends one after the other; stages of one
rank hand them on at no cost. Numbers may be of any kind that adds: floats, or fractions where exactness matters.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from perflab.pipeline.actions import Order, PipelineError, check
from perflab.pipeline.pieces import Durations, Execution, pieces
from perflab.pipeline.player import Event, Player

__all__ = ["Durations", "Event", "Execution", "Link", "Play", "measures", "simulate"]


class Link(NamedTuple):
    """What carries the messages of a rank: B/s, and seconds until the first byte is there."""

    bandwidth: float
    latency: float


@dataclass(frozen=True)
class Play:
    """A step as it was played.

    busy_s     seconds that each rank computed
    exposed_s  seconds that each rank had nothing to do but wait for a message that was on its way
    """

    step_s: float
    busy_s: list[float]
    exposed_s: list[float]
    timeline: list[Event]

    @property
    def idle_s(self) -> list[float]:
        """Seconds that each rank did not compute."""
        return [self.step_s - busy for busy in self.busy_s]

    @property
    def bubble(self) -> float:
        """Share of all ranks' time without computation."""
        return sum(self.idle_s) / (len(self.busy_s) * self.step_s)


def simulate(
    order: Order,
    durations: Sequence[Durations],
    link: Link,
    message_bytes: float,
    execution: Execution | None = None,
) -> Play:
    """The order played once, with durations by stage and messages of one size.

    Fails: PipelineError for an order that does not do everything once or cannot be played, saying what waits for what;
    for durations, a link or an execution that cannot be.
    """
    execution = execution or Execution()
    ranks = check(order)
    _check(len(ranks), durations, execution)
    if not (link.bandwidth > 0 and link.latency >= 0 and message_bytes >= 0):
        raise PipelineError(f"{link}, {message_bytes} B: expected a bandwidth above 0, latency and bytes not below")
    rows = [list(pieces(moves, durations, execution, ranks)) for moves in order]
    player = Player(rows, message_bytes / link.bandwidth, link.latency, execution.processors)
    player.play()
    return Play(player.now, player.busy, player.exposed, player.timeline)


def measures(
    order: Order,
    durations: Sequence[Durations],
    link: Link,
    message_bytes: float,
    execution: Execution | None = None,
) -> dict[Execution, Play]:
    """The step with each of the three measures off and on: priority stream, kernels it may preempt, early recompute.

    execution  what else holds in all of them
    """
    names = ("early_recompute", "preemptible", "priority_stream")
    found = {}
    for switches in itertools.product((False, True), repeat=3):
        one = dataclasses.replace(execution or Execution(), **dict(zip(names, switches, strict=True)))
        found[one] = simulate(order, durations, link, message_bytes, one)
    return found


def _check(stages: int, durations: Sequence[Durations], execution: Execution) -> None:
    if len(durations) != stages:
        raise PipelineError(f"durations: expected one for each of {stages} stages; got {len(durations)}")
    for stage, one in enumerate(durations):
        if min(value for value in dataclasses.astuple(one) if value is not None) < 0 or one.tail > one.forward:
            raise PipelineError(f"stage {stage}: expected nothing below 0 and a tail within the forward; got {one}")
    processors = 1 if execution.processors is None else execution.processors
    if not (0 <= execution.beside <= 1 and processors > 0 and execution.message >= 0):
        raise PipelineError(f"{execution}: expected beside from 0 to 1, processors above 0, a message not below 0")
    if execution.priority_stream and execution.processors is not None:
        raise PipelineError("execution: processors are shared on a CPU, a priority stream is a GPU's; choose one")
