"""Actions of a pipeline and their text, which is that of the files torch's schedules write.

`3F0` is the forward of micro-batch 0 through stage 3, `3B0` its backward. `3I0` and `3W0` are the parts of a backward:
the gradient of the stage's input, which the stage before waits for, and those of its weights, which nobody waits for.
`(0F4;7B0)OVERLAP_F_B` are a forward and a backward that overlap. A rank's actions stand in a row, with commas between.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from perflab.errors import PerflabError

FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = "F", "B", "I", "W"
_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
_OVERLAP = re.compile(r"\(([^;()]+);([^;()]+)\)OVERLAP_F_B")


class PipelineError(PerflabError, ValueError):
    """A pipeline that cannot be."""


class Action(NamedTuple):
    """What one rank does with one micro-batch in one stage."""

    stage: int
    kind: str
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


#: One action, or a forward and a backward that overlap.
Move = tuple[Action, ...]
#: Moves by rank, as each rank plays them.
Order = tuple[tuple[Move, ...], ...]


def to_text(order: Order) -> str:
    """A row per rank."""
    return "".join(",".join(map(_move_text, moves)) + "\n" for moves in order)


def from_text(text: str) -> Order:
    """The order of a row per rank; empty cells are passed over. Fails: PipelineError for a cell that is no action."""
    rows = enumerate(text.strip().splitlines())
    return tuple(tuple(_move(cell.strip(), rank) for cell in row.split(",") if cell.strip()) for rank, row in rows)


def actions(moves: Sequence[Move]) -> Iterator[Action]:
    """Every action of the moves, in order."""
    return (action for move in moves for action in move)


def ranks_of_stages(order: Order) -> list[int]:
    """The rank that each stage lies on. Fails: PipelineError for a stage on two ranks, or one without actions."""
    found: dict[int, int] = {}
    for rank, moves in enumerate(order):
        for action in actions(moves):
            if found.setdefault(action.stage, rank) != rank:
                raise PipelineError(
                    f"order: stage {action.stage} is on ranks {found[action.stage]} and {rank}; a stage lies on one"
                )
    missing = sorted(set(range(max(found, default=0) + 1)) - set(found))
    if missing:
        raise PipelineError(f"order: stage {missing[0]} has no action; stages count from 0 without gaps")
    return [found[stage] for stage in range(len(found))]


def check(order: Order) -> list[int]:
    """The rank of each stage, of an order that does everything once.

    Fails: PipelineError for an action that stands twice, for one that is missing, for a backward done both whole and in
    parts, and for an overlap that is not of a forward and a whole backward.
    """
    ranks = ranks_of_stages(order)
    done = [action for moves in order for action in actions(moves)]
    if not done:
        raise PipelineError("order: it has no action")
    if len(set(done)) != len(done):
        twice = next(action for action in done if done.count(action) > 1)
        raise PipelineError(f"order: {twice} stands twice")
    for move in (move for moves in order for move in moves if len(move) > 1):
        if [action.kind for action in move] != [FORWARD, BACKWARD]:
            raise PipelineError(
                f"order: {_move_text(move)} overlaps; expected a forward, then a backward of another stage"
            )
    kinds: dict[tuple[int, int], str] = {}
    for stage, kind, micro_batch in sorted(done):
        kinds[stage, micro_batch] = kinds.get((stage, micro_batch), "") + kind
    m = 1 + max(micro_batch for _, micro_batch in kinds)
    for stage, micro_batch in itertools.product(range(len(ranks)), range(m)):
        found = kinds.get((stage, micro_batch), "nothing")
        if found not in ("BF", "FIW"):
            raise PipelineError(
                f"order: stage {stage} does {found} with micro-batch {micro_batch}; expected F and B, or F, I and W"
            )
    return ranks


def _move_text(move: Move) -> str:
    return str(move[0]) if len(move) == 1 else f"({';'.join(map(str, move))})OVERLAP_F_B"


def _move(cell: str, rank: int) -> Move:
    overlap = _OVERLAP.fullmatch(cell)
    found = [_ACTION.fullmatch(part.strip()) for part in (overlap.groups() if overlap else (cell,))]
    if not all(found):
        raise PipelineError(
            f"order of rank {rank}: {cell!r} is no action; expected such as 3F0, 3B0, 3I0, 3W0, (0F4;7B0)OVERLAP_F_B"
        )
    return tuple(Action(int(match[1]), match[2], int(match[3])) for match in found if match)
