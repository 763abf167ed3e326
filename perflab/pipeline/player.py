"""The clock of a pipeline: pieces are played by their ranks, messages travel between them."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from perflab.pipeline.actions import BACKWARD, FORWARD, PipelineError
from perflab.pipeline.pieces import Given, Piece


class Event(NamedTuple):
    """Something that took its time, on a rank's stream `compute`, `priority` or `send`."""

    rank: int
    stream: str
    start: float
    end: float
    label: str


class Player:
    """Plays rows of pieces, one per rank, to their end.

    Ranks that compute share the processors evenly. `work` is a clock that runs as each of them advances: it makes the
    ranks' ends comparable whatever their number does meanwhile.
    """

    def __init__(
        self, rows: Sequence[Sequence[Piece]], occupied: float, latency: float, processors: float | None
    ) -> None:
        self.rows, self.occupied, self.latency, self.processors = rows, occupied, latency, processors
        self.now: float = 0
        self.work: float = 0
        self.at = [0] * len(rows)
        self.since: list[float] = [0] * len(rows)  # when a rank began its piece, or to wait for it
        self.sending: list[float] = [0] * len(rows)  # when a rank's last message has left
        self.running: list[tuple[float, int]] = []
        self.coming: list[tuple[float, int, Callable[[int, Piece], None], int, Piece]] = []
        self.ready: set[Given] = set()
        self.sent: dict[Given, float] = {}  # when a message that is on its way was given to its stream
        self.waiting: dict[Given, int] = {}
        self.busy: list[float] = [0] * len(rows)
        self.exposed: list[float] = [0] * len(rows)
        self.timeline: list[Event] = []
        self._number = itertools.count()

    def play(self) -> None:
        """Until every row is through. Fails: PipelineError, saying what waits for what, if that never comes."""
        for rank in range(len(self.rows)):
            self._next(rank)
        while self.running or self.coming:
            slower = self._slower()
            end = self.now + (self.running[0][0] - self.work) * slower if self.running else None
            if end is None or (self.coming and self.coming[0][0] <= end):
                time, _, happen, rank, piece = heapq.heappop(self.coming)
                self.work += (time - self.now) / slower if slower != 1 else time - self.now
                self.now = time
                happen(rank, piece)
            else:
                self.work, rank = heapq.heappop(self.running)
                self.now = end
                self._finish(rank)
        if self.waiting:
            last = max(given.stage for row in self.rows for piece in row for given in piece.gives)
            stuck = sorted((rank, self.rows[rank][self.at[rank]], given) for given, rank in self.waiting.items())
            told = "; ".join(_told(*who, last) for who in stuck)
            raise PipelineError(f"order: it cannot be played: {told}")

    def _slower(self) -> float:
        if self.processors is None or len(self.running) <= self.processors:
            return 1
        return len(self.running) / self.processors

    def _next(self, rank: int) -> None:
        """Begin the rank's next piece, or wait for what it needs."""
        self.since[rank] = self.now
        if self.at[rank] == len(self.rows[rank]):
            return
        piece = self.rows[rank][self.at[rank]]
        if piece.needs is not None and piece.needs not in self.ready:
            self.waiting[piece.needs] = rank
        else:
            heapq.heappush(self.running, (self.work + piece.work, rank))

    def _finish(self, rank: int) -> None:
        piece = self.rows[rank][self.at[rank]]
        if piece.work:
            self.timeline.append(Event(rank, "compute", self.since[rank], self.now, piece.label))
            self.busy[rank] += self.now - self.since[rank]
        self.at[rank] += 1
        if piece.tail:
            start = self.now + piece.wait
            self.timeline.append(Event(rank, "priority", start, start + piece.tail, piece.label))
            self._later(start + piece.tail, self._hand_on, rank, piece)
        elif piece.gives:
            self._hand_on(rank, piece)
        self._next(rank)

    def _hand_on(self, rank: int, piece: Piece) -> None:
        """Make ready what the piece gives: at once on its rank, by a message elsewhere."""
        for given in piece.gives[1:] if piece.message else piece.gives:
            self._make_ready(given, self.now)
        if piece.message:
            start = max(self.now, self.sending[rank])
            self.sending[rank] = start + self.occupied
            self.timeline.append(Event(rank, "send", start, self.sending[rank], piece.label))
            self.sent[piece.gives[0]] = self.now
            self._later(self.sending[rank] + self.latency, self._arrive, rank, piece)

    def _arrive(self, _: int, piece: Piece) -> None:
        self._make_ready(piece.gives[0], self.sent.pop(piece.gives[0]))

    def _make_ready(self, given: Given, sent: float) -> None:
        self.ready.add(given)
        rank = self.waiting.pop(given, None)
        if rank is not None:
            self.exposed[rank] += self.now - max(self.since[rank], sent)
            self._next(rank)

    def _later(self, time: float, happen: Callable[[int, Piece], None], rank: int, piece: Piece) -> None:
        heapq.heappush(self.coming, (time, next(self._number), happen, rank, piece))


def _told(rank: int, piece: Piece, given: Given, last: int) -> str:
    """Who waits for what."""
    kind, stage, micro_batch = given
    if kind == FORWARD:
        source = f"{stage - 1}F{micro_batch}"
    elif kind == BACKWARD and stage < last:
        source = f"the cotangent of {stage + 1}B{micro_batch}"
    else:
        source = f"{stage}{'F' if kind == BACKWARD else 'I'}{micro_batch}"
    return f"rank {rank} stands at {piece.label}, which waits for {source}"
