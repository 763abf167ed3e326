"""Time told apart: by real profiles of calls whose parts are known to be heavy or light."""

import pytest
import torch

from perflab.measure.attribution import Measured, Observed, combine, observe
from perflab.measure.parts import AGAIN, named, part


class Again(torch.autograd.Function):
    """Multiplies; in backward it multiplies twenty times anew before it gives its gradient."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        with torch.enable_grad(), part(AGAIN):
            for _ in range(20):
                x = torch.tanh(x @ w)
        return gradient @ w.T, None


CALL_S = 7.0


@pytest.fixture
def seconds():
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(192, 192, generator=generator) / 14
    x = torch.randn(512, 192, generator=generator).requires_grad_()

    def call():
        with part("light"):
            y = x * 2
        with part("heavy"):
            for _ in range(20):
                y = torch.tanh(y @ w)
            with part("inner"):
                y = y.square()
        with part("again"):
            pass
        with part("kept"):
            y = Again.apply(y, w)
        y.sum().backward()
        with part("optimiser"):
            x.grad = None

    observe(call, "cpu")
    found = combine([observe(call, "cpu") for _ in range(3)], CALL_S, "cpu")
    return {(one.name, one.phase): one for one in found["parts"]}


def test_backward_belongs_to_the_part_whose_forward_it_differentiates(seconds):
    assert seconds["heavy", "forward"].seconds > 5 * seconds["light", "forward"].seconds
    assert seconds["heavy", "backward"].seconds > 5 * seconds["light", "backward"].seconds
    assert seconds["inner", "backward"].seconds < seconds["heavy", "backward"].seconds


def test_what_is_computed_again_is_rebuilding_of_its_own_part(seconds):
    assert seconds["kept", "rebuild"].seconds > 2 * seconds["kept", "backward"].seconds
    assert seconds["kept", "rebuild"].launches >= 40 and not any(
        name == AGAIN for name, _ in seconds if name != "other"
    )


def test_an_update_is_neither_forward_nor_backward(seconds):
    assert {phase for name, phase in seconds if name == "optimiser"} == {"update"}


def test_launches_are_counted(seconds):
    assert seconds["heavy", "forward"].launches == 40
    assert seconds["light", "forward"].launches == 1


def test_parts_cost_nothing_and_mark_nothing_unless_asked_for():
    assert not isinstance(part("any"), torch.profiler.record_function)
    with named():
        assert isinstance(part("any"), torch.profiler.record_function)
    assert not isinstance(part("any"), torch.profiler.record_function)


def test_parts_add_up_to_the_timed_call(seconds):
    assert sum(one.seconds for one in seconds.values()) == pytest.approx(CALL_S)


def test_a_machine_that_slows_down_moves_no_part():
    """Twice as slow, profile and plain step alike: shares stay, and what profiling costs is taken off by its events."""
    speeds = (1.0, 2.0, 1.0, 2.0, 2.0)
    few, many, cost = 10, 1000, 1e-6
    seen = [
        Observed(
            speed * 0.010,
            {
                ("few", "forward"): Measured(speed * (0.006 + few * cost), 3, few),
                ("many", "forward"): Measured(speed * (0.004 + many * cost), 400, many),
            },
        )
        for speed in speeds
    ]
    found = {one.name: one for one in combine(seen, 0.020, "cpu")["parts"]}
    assert found["few"].seconds == pytest.approx(0.012, rel=0.1)
    assert found["many"].seconds == pytest.approx(0.008, rel=0.1)
    assert found["few"].seconds + found["many"].seconds == pytest.approx(0.020)
    assert (found["few"].launches, found["many"].launches) == (3, 400)


def test_a_part_that_only_some_calls_have_is_kept():
    plain = Observed(1.0, {("a", "forward"): Measured(1.0, 1, 1)})
    other = Observed(1.0, {("a", "forward"): Measured(0.5, 1, 1), ("b", "update"): Measured(0.5, 2, 1)})
    found = {one.name: one for one in combine([plain, other, other], 4.0, "cpu")["parts"]}
    assert (found["a"].seconds, found["b"].seconds) == pytest.approx((2.0, 2.0))
