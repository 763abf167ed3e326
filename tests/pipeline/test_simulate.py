"""The simulator against theory, and against pipelines small enough to be reckoned by hand."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest

from perflab.measure import pipeline_orders
from perflab.pipeline.actions import from_text
from perflab.pipeline.orders import one_forward_one_backward
from perflab.pipeline.simulate import Durations, Execution, Link, measures, simulate

FREE = Link(Fraction(1), Fraction(0))
ONCE = "0F0,0B0\n1F0,1B0"
ONE = Durations(Fraction(1), Fraction(1), Fraction(1))


def free(order, durations, **execution):
    """Played without communication."""
    return simulate(order, durations, FREE, Fraction(0), Execution(**execution))


@pytest.mark.parametrize("p", range(1, 9))
@pytest.mark.parametrize("more", [0, 1, 5, 24])
def test_the_bubble_of_1f1b_is_exactly_that_of_theory(p, more):
    m = p + more
    for one in (ONE, Durations(Fraction(3), Fraction(2), Fraction(2), recompute=Fraction(1))):
        play = free(one_forward_one_backward(p, m), [one] * p)
        assert play.bubble == Fraction(p - 1, m + p - 1)
        assert set(play.exposed_s) == {0}


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(("F", "I", "W"), [(1, 1, 1), (2, 2, 1), (4, 4, 3), (5, 5, 2)])
def test_dualpipes_bubble_is_the_published_one_where_forward_and_backward_of_the_input_are_equal(p, F, I, W):  # noqa: E741
    """(p - 1) (F&B + B - 3W) of p ranks, with F&B = F + B: table 2 of DeepSeek-V3, as its V half the stages."""
    B = I + W
    for m in (2 * p, 3 * p + 1, 8 * p):
        play = free(pipeline_orders.order("DualPipeV", p, m), [Durations(F, I, W)] * (2 * p), interleaved=True)
        assert play.idle_s == [(p - 1) * (F + B + B - 3 * W)] * p


def test_dualpipes_formula_is_not_exact_elsewhere():
    """With unequal halves pairs of neighbouring ranks wait for each other: more than the formula, or less."""
    order = pipeline_orders.order("DualPipeV", 4, 16)
    assert free(order, [Durations(3, 2, 2)] * 8, interleaved=True).idle_s == [18] * 4  # the formula: 15
    assert free(order, [Durations(2, 3, 1)] * 8, interleaved=True).idle_s == [19] * 4  # the formula: 21


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize(("F", "I", "W"), [(1, 1, 1), (2, 2, 1), (3, 2, 2)])
def test_dualpipe_as_torch_plays_it_wastes_less_than_its_formula(p, F, I, W):  # noqa: E741
    """Its halves one after the other send their messages sooner; what is left is (p - 1) (F + I - W)."""
    order = pipeline_orders.order("DualPipeV", p, 4 * p)
    assert free(order, [Durations(F, I, W)] * (2 * p)).idle_s == [(p - 1) * (F + I - W)] * p


@pytest.mark.parametrize("p", [1, 2, 4, 8])
@pytest.mark.parametrize("m", [16, 31])
def test_zero_bubble_fills_all_but_the_first_forwards_where_all_parts_are_equal(p, m):
    play = free(pipeline_orders.order("ZBVZeroBubble", p, m), [Durations(1, 1, 1)] * (2 * p))
    assert play.idle_s == [p - 1] * p


def test_messages_leave_one_after_the_other_and_what_is_waited_for_is_exposed():
    """Two ranks, one micro-batch: 1 s of F, 2 + 1 s of message, 1 s of F and 2 s of B, 3 s of message, 2 s of B."""
    play = simulate(from_text(ONCE), [Durations(1, 1, 1)] * 2, Link(10, 1), 20)
    assert play.step_s == 1 + 3 + 1 + 2 + 3 + 2
    assert play.exposed_s == [3, 3]
    assert [(event.rank, event.start, event.end) for event in play.timeline if event.stream == "send"] == [
        (0, 1, 3),
        (1, 7, 9),
    ]


def test_a_busy_link_delays_the_second_message():
    play = simulate(from_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1"), [Durations(1, 1, 1)] * 2, Link(1, 0), 10)
    first, second = [event for event in play.timeline if event.stream == "send" and event.rank == 0]
    assert (first.start, first.end, second.start, second.end) == (1, 11, 11, 21)


def test_early_recompute_takes_place_while_the_cotangent_is_awaited():
    """The first rank has nothing to do but wait, longer than it rebuilds."""
    durations, order = [Durations(1, 1, 1, recompute=2)] * 2, from_text(ONCE)
    late, early = (free(order, durations, early_recompute=early) for early in (False, True))
    assert late.step_s == 1 + 1 + 4 + 4
    assert early.step_s == 1 + 1 + 4 + 2
    assert late.busy_s == early.busy_s


PAIR = "0F0,1F0,(0F1;1B0)OVERLAP_F_B,1F1,1B1,0B0,0B1"


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_tail_beside_the_backward_saves_its_share(interleaved):
    order, durations = from_text(PAIR), [Durations(4, 1, 1, tail=1)] * 2
    plain = free(order, durations, interleaved=interleaved).step_s
    assert plain == 4 * 4 + 4 * 2
    for beside in (0, Fraction(1, 4), 1):
        play = free(order, durations, interleaved=interleaved, priority_stream=True, preemptible=True, beside=beside)
        assert play.step_s == plain - beside
        (tail,) = [event for event in play.timeline if event.stream == "priority"]
        assert tail.end - tail.start == 1


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_persistent_kernel_is_waited_for(interleaved):
    """Its half; on one rank the forward of the next stage waits with it."""
    order, durations = from_text(PAIR), [Durations(4, 1, 1, tail=1, kernel=6)] * 2
    quick, slow = (
        free(order, durations, interleaved=interleaved, priority_stream=True, preemptible=preemptible).step_s
        for preemptible in (True, False)
    )
    assert slow == quick + (3 if interleaved else 2), "one second of the wait is hidden where the backward follows"


def test_without_overlap_or_stream_the_switches_change_nothing():
    durations = [Durations(4, 1, 1, tail=1, kernel=6)] * 4
    steps = {play.step_s for play in measures(one_forward_one_backward(4, 8), durations, FREE, 0).values()}
    assert len(steps) == 1


def test_the_measures_are_eight_and_each_alone_never_costs_time_where_kernels_may_be_preempted():
    order, durations = (
        pipeline_orders.order("DualPipeV", 4, 16),
        [Durations(4, 4, 3, recompute=1, tail=1, kernel=1)] * 8,
    )
    found = {
        (one.priority_stream, one.preemptible, one.early_recompute): play.step_s
        for one, play in measures(order, durations, Link(10, 0), 5, Execution(interleaved=True)).items()
    }
    assert len(found) == 8
    assert found[True, True, False] < found[False, False, False] == found[False, True, False]
    assert found[False, False, True] < found[False, False, False]
    assert found[True, True, True] == min(found.values())


def test_processors_are_shared_by_those_who_compute():
    """One processor plays all ranks' work one after the other in effect; as many as ranks change nothing."""
    p, m = 4, 8
    order = one_forward_one_backward(p, m)
    alone = free(order, [ONE] * p)
    assert free(order, [ONE] * p, processors=p) == alone
    assert free(order, [ONE] * p, processors=Fraction(1)).step_s == p * m * 3
    two = free(order, [ONE] * p, processors=Fraction(2))
    assert p * m * 3 / 2 < two.step_s
    assert alone.step_s < two.step_s


def test_two_ranks_on_one_processor_take_turns_evenly():
    """Work of 1 and 3: both run at half speed until the first is through at 2, the rest takes 2 more."""
    order = from_text(ONCE)
    play = free(order, [Durations(0, 0, 0, update=1), Durations(0, 0, 0, update=3)], processors=1)
    assert [event.end for event in play.timeline if event.stream == "compute"] == [2, 4]


@pytest.mark.parametrize("p", [1, 2, 5])
def test_a_message_that_the_ends_carry_themselves_takes_their_time(p):
    """One micro-batch there and back: p - 1 messages each way, each at two ends."""
    order = from_text("".join(f"{stage}F0,{stage}B0\n" for stage in range(p)))
    assert free(order, [ONE] * p, message=7).step_s == free(order, [ONE] * p).step_s + 2 * 2 * (p - 1) * 7


@pytest.mark.parametrize("schedule", ["1F1B", "ZBVZeroBubble", "DualPipeV"])
def test_every_message_costs_both_of_its_ends_and_nothing_else_costs(schedule):
    p, m = 4, 8
    order = pipeline_orders.order(schedule, p, m)
    stages = p * pipeline_orders.STAGES_PER_RANK[schedule]
    plain, carried = (simulate(order, [ONE] * stages, FREE, 0, Execution(message=one)) for one in (0, 7))
    sent = sum(event.stream == "send" for event in plain.timeline)
    assert sum(carried.busy_s) - sum(plain.busy_s) == 2 * sent * 7


@pytest.mark.parametrize(("text", "told"), [
    ("0B0,0F0\n1F0,1B0", "rank 0 stands at 0B0, which waits for the cotangent of 1B0; rank 1 stands at 1F0, which waits for 0F0"),
    ("0F0,0B0\n1B0,1F0", "rank 1 stands at 1B0, which waits for 1F0"),
    ("0F0,0W0,0I0", "rank 0 stands at 0W0, which waits for 0I0"),
])  # fmt: skip
def test_an_order_that_cannot_be_played_says_what_waits_for_what(text, told):
    with pytest.raises(ValueError, match=told):
        free(from_text(text), [ONE] * (1 + text.count("\n")))


@pytest.mark.parametrize(("change", "told"), [
    ({"durations": [ONE]}, "one for each of 2 stages"),
    ({"durations": [ONE, Durations(-1, 1, 1)]}, "stage 1: expected nothing below 0"),
    ({"durations": [ONE, Durations(1, 1, 1, tail=2)]}, "a tail within the forward"),
    ({"link": Link(0, 0)}, "bandwidth above 0"),
    ({"message_bytes": -1}, "not below"),
    ({"execution": Execution(beside=2)}, "beside from 0 to 1"),
    ({"execution": Execution(processors=0)}, "processors above 0"),
    ({"execution": Execution(message=-1)}, "a message not below 0"),
    ({"execution": Execution(processors=1, priority_stream=True)}, "choose one"),
])  # fmt: skip
def test_what_cannot_be_is_refused(change, told):
    arguments = {"durations": [ONE, ONE], "link": FREE, "message_bytes": 0} | change
    with pytest.raises(ValueError, match=told):
        simulate(one_forward_one_backward(2, 2), **arguments)


@pytest.mark.parametrize("schedule", ["1F1B", "ZBVZeroBubble", "DualPipeV"])
def test_a_large_step_is_simulated_in_a_blink(schedule):
    order = pipeline_orders.order(schedule, 8, 64)
    durations = [Durations(1, 1, 1, recompute=0.3, tail=0.1, kernel=0.2)] * (
        8 * pipeline_orders.STAGES_PER_RANK[schedule]
    )
    seconds = []
    for _ in range(10):
        begin = time.process_time()
        simulate(order, durations, Link(1e9, 1e-5), 1e3)
        seconds.append(time.process_time() - begin)
    # 20 to 40 ms where it was written, up to 66 beside other work: what is caught here is time that grows with a square.
    assert min(seconds) < 0.2
