"""What a rank computes, piece by piece: how long each takes, what it waits for, and what it makes ready."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from perflab.pipeline.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Action, Move


@dataclass(frozen=True)
class Durations:
    """Seconds of one micro-batch in one stage.

    forward          whole, the tail included
    backward_input   gradient of the stage's input
    backward_weight  gradients of the weights
    backward         of both at once, where it is not their sum
    recompute        what is rebuilt from kept tensors before a backward can begin
    tail             the forward's end that a priority stream may run beside an overlapping backward
    kernel           the longest kernel that a tail waits for where kernels are persistent
    update           the optimiser's, once a step
    """

    forward: float
    backward_input: float
    backward_weight: float
    backward: float | None = None
    recompute: float = 0
    tail: float = 0
    kernel: float = 0
    update: float = 0

    def of(self, kind: str) -> float:
        """Seconds of an action's kind, without what is rebuilt before it."""
        if kind == BACKWARD and self.backward is None:
            return self.backward_input + self.backward_weight
        by_kind = (self.forward, self.backward, self.backward_input, self.backward_weight)
        return dict(zip("FBIW", by_kind, strict=True))[kind] or 0


@dataclass(frozen=True)
class Execution:
    """How ranks execute their moves.

    interleaved      kernels of a forward and a backward that overlap alternate, as DualPipe has it: both wait for both
                     messages and end together; else the backward follows the forward, as torch plays them
    priority_stream  a forward's tail runs on a stream of its own, beside the backward that it overlaps with
    beside           share of the tail's time in which that backward goes on
    preemptible      the tail does not wait for a kernel of that backward; else half the longest passes on average
    early_recompute  what a backward rebuilds is rebuilt while its cotangent is still awaited
    processors       processors that all ranks share, each computing with one; None where every rank has its own
    message          seconds of computing that a message costs either end, as where no device carries it
    """

    interleaved: bool = False
    priority_stream: bool = False
    beside: float = 1
    preemptible: bool = False
    early_recompute: bool = False
    processors: float | None = None
    message: float = 0


class Given(NamedTuple):
    """What becomes ready: the input of an action (I waits as B does)."""

    kind: str
    stage: int
    micro_batch: int


class Piece(NamedTuple):
    """A part of a rank's row.

    needs, gives  what it waits for; what it makes ready, the first by a message if `message`
    tail, wait    what runs on the priority stream before anything is ready, and how long after the piece it begins
    """

    label: str
    work: float
    needs: Given | None = None
    gives: tuple[Given, ...] = ()
    message: bool = False
    tail: float = 0
    wait: float = 0


def pieces(
    moves: Sequence[Move], durations: Sequence[Durations], execution: Execution, ranks: Sequence[int]
) -> Iterator[Piece]:
    """A rank's row: its moves, then its stages' updates."""
    for move in moves:
        row = [_piece(action, durations[action.stage], ranks, execution.message) for action in move]
        one = durations[move[-1].stage]
        rebuild = []
        if one.recompute and move[-1].kind in (BACKWARD, BACKWARD_INPUT):
            needs = None if execution.early_recompute else row[-1].needs
            rebuild = [Piece(f"{move[-1].stage}R{move[-1].micro_batch}", one.recompute, needs)]
        if len(row) == 1:
            yield from (*rebuild, *row)
        else:
            yield from _overlap(row, rebuild, execution, (durations[move[0].stage].tail, one.kernel))
    for stage in sorted({action.stage for move in moves for action in move}):
        if durations[stage].update:
            yield Piece(f"{stage} update", durations[stage].update)


def _overlap(
    row: Sequence[Piece], rebuild: list[Piece], execution: Execution, spans: tuple[float, float]
) -> Iterator[Piece]:
    """The pieces of an overlap; spans are the forward's tail and the kernel that it may have to wait for."""
    forward, backward = row
    tail, kernel = spans
    if tail and execution.priority_stream:
        wait = 0 if execution.preemptible else kernel / 2
        forward = forward._replace(work=forward.work - tail, tail=tail, wait=wait)
        backward = backward._replace(work=backward.work + (1 - execution.beside) * tail)
    if not execution.interleaved:
        yield from (forward, *rebuild, backward)
        return
    begin = forward._replace(work=0, gives=(), message=False, tail=0)
    both = forward._replace(
        label=f"{forward.label} {backward.label}",
        work=forward.work + backward.work,
        needs=backward.needs,
        wait=forward.wait - forward.tail,
    )
    end = backward._replace(work=0, needs=None)
    yield from (*rebuild, begin, both, end) if execution.early_recompute else (begin, *rebuild, both, end)


def _piece(action: Action, durations: Durations, ranks: Sequence[int], message: float) -> Piece:
    stage, kind, micro_batch = action
    waits = Given(BACKWARD if kind == BACKWARD_INPUT else kind, stage, micro_batch)
    after: list[Given] = []
    last = len(ranks) - 1
    # The stages that its input comes from and its result goes to.
    before = behind = stage
    if kind == FORWARD:
        before, behind = max(stage - 1, 0), min(stage + 1, last)
        after.append(Given(FORWARD if stage < last else BACKWARD, behind, micro_batch))
    elif kind != BACKWARD_WEIGHT:
        before, behind = min(stage + 1, last), max(stage - 1, 0)
        if stage:
            after.append(Given(BACKWARD, behind, micro_batch))
    sent, received = (ranks[other] != ranks[stage] for other in (behind, before))
    if kind == BACKWARD_INPUT:
        after.append(Given(BACKWARD_WEIGHT, stage, micro_batch))
    needs = None if kind == FORWARD and not stage else waits
    work = durations.of(kind) + (sent + received) * message
    return Piece(str(action), work, needs, tuple(after), sent)
