"""Orders: text, what an order must hold, and 1F1B beside torch's own."""

from __future__ import annotations

import pytest
from torch.distributed.pipelining import schedules

from perflab.errors import PerflabError
from perflab.measure import pipeline_orders
from perflab.pipeline.actions import Action, check, from_text, to_text
from perflab.pipeline.orders import layers_per_stage, one_forward_one_backward

SIZES = [(p, m) for p in range(1, 9) for m in (p, p + 1, 2 * p, 2 * p + 3, 33)]
V = [
    (schedule, p, m) for schedule in ("ZBVZeroBubble", "DualPipeV") for p in (1, 2, 3, 4, 8) for m in (2 * p, 5 * p + 1)
]


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_1f1b_is_the_order_that_torch_plays(p, m):
    assert one_forward_one_backward(p, m) == pipeline_orders.order("1F1B", p, m)


def test_the_order_that_torch_keeps_of_1f1b_for_show_counts_the_last_ranks_forwards_from_1():
    """Why ours is taken from its loop: when this fails, torch has mended it."""
    shown = schedules.Schedule1F1B(pipeline_orders._Stage(0, 2, 2), 4).pipeline_order
    assert [str(action) for action in shown[1] if action and action.computation_type.value == "F"] == [
        "1F1",
        "1F2",
        "1F3",
        "1F4",
    ]
    assert [str(action) for (action,) in pipeline_orders.order("1F1B", 2, 4)[1]][::2] == ["1F0", "1F1", "1F2", "1F3"]


@pytest.mark.parametrize(("schedule", "p", "m"), V)
def test_v_schedules_do_everything_once_on_ranks_that_lie_in_a_v(schedule, p, m):
    order = pipeline_orders.order(schedule, p, m)
    assert check(order) == [*range(p), *reversed(range(p))]
    assert from_text(to_text(order)) == order


def test_text_is_what_torch_writes_and_reads(tmp_path):
    """Each cell of ours is an action to torch, and torch's file is an order to us."""
    stages = [pipeline_orders._Stage(stage, 8, 4) for stage in (0, 7)]
    theirs = schedules.ScheduleDualPipeV(stages, 8)
    theirs._dump_csv(tmp_path / "order.csv", format="compute_only")
    ours = pipeline_orders.order("DualPipeV", 4, 8)
    assert from_text((tmp_path / "order.csv").read_text()) == ours
    for row in to_text(ours).splitlines():
        assert ",".join(str(schedules._Action.from_str(cell)) for cell in row.split(",")) == row


@pytest.mark.parametrize(("schedule", "p", "m", "told"), [
    ("1F1B", 4, 3, "microbatches"),
    ("DualPipeV", 4, 7, "microbatches"),
    ("1F1b", 2, 2, "1F1B"),
])  # fmt: skip
def test_an_order_that_torch_cannot_make_is_told_in_one_line(schedule, p, m, told):
    with pytest.raises(PerflabError, match=told) as error:
        pipeline_orders.order(schedule, p, m)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("text", "told"), [
    ("0F0,0B0,0F0", "0F0 stands twice"),
    ("0F0,0I0", "stage 0 does FI"),
    ("0F0,0B0,0W0", "stage 0 does BFW"),
    ("0F0,0B0,0F1,0B1,1F0,1B0", "stage 1 does nothing with micro-batch 1"),
    ("0F0,0B0\n0F1,0B1", "ranks 0 and 1"),
    ("0F0,0B0,2F0,2B0", "stage 1 has no action"),
    ("0B0,(0F0;1F0)OVERLAP_F_B,1B0", "overlaps"),
    ("0F0,0X0", "'0X0' is no action"),
    ("0F0,0B0x", "'0B0x' is no action"),
    ("", "no action"),
])  # fmt: skip
def test_an_order_that_does_not_do_everything_once_is_refused(text, told):
    with pytest.raises(PerflabError, match=told):
        check(from_text(text))


def test_a_move_keeps_its_overlap():
    ((move, *_),) = from_text("(0F1;1B0)OVERLAP_F_B,0F0")
    assert move == (Action(0, "F", 1), Action(1, "B", 0))


def test_stages_must_divide_the_layers_and_the_error_says_which_do():
    assert layers_per_stage(30, 6) == 5
    with pytest.raises(ValueError, match=r"8 stages do not divide 30 layers; these do: \[1, 2, 3, 5, 6, 10, 15, 30\]"):
        layers_per_stage(30, 8)


@pytest.mark.parametrize(("p", "m"), [(0, 4), (4, 3)])
def test_1f1b_needs_a_micro_batch_for_every_rank(p, m):
    with pytest.raises(ValueError, match="1F1B"):
        one_forward_one_backward(p, m)
