"""The orders that torch's pipeline schedules play, without a process group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.distributed.pipelining import schedules

from perflab.errors import unknown
from perflab.pipeline.actions import Action, Move, Order, PipelineError

#: By torch's names, with the stages that a rank holds.
STAGES_PER_RANK = {"1F1B": 1, "ZBVZeroBubble": 2, "DualPipeV": 2}


def order(schedule: str, p: int, m: int) -> Order:
    """Moves by rank of m micro-batches on p ranks.

    Fails: PerflabError for an unknown schedule; PipelineError for fewer micro-batches than it needs.
    """
    if schedule not in STAGES_PER_RANK:
        raise unknown("schedule", schedule, STAGES_PER_RANK)
    try:
        if schedule == "1F1B":
            return tuple(tuple(_played(rank, p, m)) for rank in range(p))
        kind = schedules.get_schedule_class(schedule)
        rows = kind([_Stage(stage, 2 * p, p) for stage in (0, 2 * p - 1)], m).pipeline_order
    except ValueError as error:
        raise PipelineError(f"{schedule} with p={p}, m={m}: {' '.join(str(error).split())}") from error
    return tuple(tuple(_moves(rows[rank])) for rank in range(p))


class _Stage:
    """As much of a stage as a schedule asks for when it is made; nothing is sent or computed."""

    def __init__(self, stage: int, stages: int, ranks: int) -> None:
        self.stage_index, self.num_stages, self.group_size, self.group_rank = stage, stages, ranks, 0
        self.submod = None
        self.is_first, self.is_last = stage == 0, stage == stages - 1
        self.done: list[Action] = []

    def forward_one_chunk(self, micro_batch: int, *_: Any, **__: Any) -> None:
        """Note a forward."""
        self.done.append(Action(self.stage_index, "F", micro_batch))

    def backward_one_chunk(self, micro_batch: int, **_: Any) -> None:
        """Note a backward."""
        self.done.append(Action(self.stage_index, "B", micro_batch))

    def _no_messages(self, *_: Any) -> list[Any]:
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = _no_messages

    def perform_reduce_grad(self, *_: Any) -> None:
        """Nothing to reduce."""


def _played(rank: int, p: int, m: int) -> Iterator[Move]:
    """1F1B as its own loop plays it: the order that it keeps for show counts the last rank's forwards from 1."""
    stage = _Stage(rank, p, p)
    schedule = schedules.Schedule1F1B(stage, m)
    schedule._initialize_stage = lambda *_, **__: None
    schedule._step_microbatches()
    return ((action,) for action in stage.done)


def _moves(actions: Iterable[Any]) -> Iterator[Move]:
    for action in actions:
        if action is not None:
            parts = action.sub_actions or (action,)
            yield tuple(Action(a.stage_index, a.computation_type.value, a.microbatch_index) for a in parts)
