"""Time told apart: by real profiles of calls whose parts are known to be heavy or light."""

import pytest
import torch

from perflab.measure.attribution import Measured, Observed, _device_parts, combine, observe
from perflab.measure.parts import AGAIN, PREFIX, named, part


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
    found = combine([observe(call, "cpu") for _ in range(3)], CALL_S, 0.0, "cpu")
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


COST = 1e-6


def profiled(speed=1.0, plain_s=0.010):
    """A step of 10 ms in a part of 10 events and one of 1000, of which each takes COST; `speed` slows all of it."""
    few, many = 10, 1000
    parts = {
        ("few", "forward"): Measured(speed * (0.006 + few * COST), 3, few),
        ("many", "forward"): Measured(speed * (0.004 + many * COST), 400, many),
    }
    return Observed(speed * plain_s, parts)


def test_a_profile_is_all_of_the_call(seconds):
    """In the made call nothing runs outside the marked parts but what sums up and starts differentiation."""
    other = sum(one.seconds for (name, _), one in seconds.items() if name == "other")
    assert sum(one.seconds for one in seconds.values()) == pytest.approx(CALL_S)
    assert other < 0.25 * CALL_S


def test_a_machine_that_slows_down_moves_no_part():
    """Twice as slow, profile and plain step alike: shares stay, and what profiling costs is taken off by its events."""
    seen = [profiled(speed) for speed in (1.0, 2.0, 1.0, 2.0, 2.0)]
    found = combine(seen, 0.020, COST, "cpu")
    parts = {one.name: one for one in found["parts"]}
    assert parts["few"].seconds == pytest.approx(0.012, rel=0.1)
    assert parts["many"].seconds == pytest.approx(0.008, rel=0.1)
    assert (parts["few"].launches, parts["many"].launches) == (3, 400)
    assert abs(found["profile_error"]) < 0.1 and found["profiler_s"] == COST


def test_what_profiling_an_event_takes_is_told_by_every_profile():
    assert profiled().cost_of_event == pytest.approx(COST)
    assert profiled(plain_s=0.02).cost_of_event < 0


def test_a_profile_that_is_no_like_the_plain_step_says_by_how_much():
    found = combine([profiled(plain_s=0.008)], 0.020, COST, "cpu")
    assert found["profile_error"] == pytest.approx(0.25)


def test_no_part_takes_less_than_nothing():
    found = combine([profiled()], 0.020, 10 * COST, "cpu")
    assert {one.name: one.seconds for one in found["parts"]} == pytest.approx({"few": 0.020, "many": 0.0})


class Noted:
    """As much of a profile's event as is asked for; no GPU is at hand whose profile could be taken."""

    def __init__(self, name, start, end, device="CPU", correlation=0, linked=0, annotation=False):
        self.values = {
            "name": name, "start_ns": start, "end_ns": end, "duration_ns": end - start, "start_thread_id": 1,
            "sequence_nr": -1, "correlation_id": correlation, "linked_correlation_id": linked,
            "device_type": getattr(torch.autograd.DeviceType, device), "is_user_annotation": annotation,
        }  # fmt: skip

    def __getattr__(self, name):
        return lambda: self.values[name]


def test_kernels_belong_to_what_launched_them_and_annotations_are_none():
    events = [
        Noted("perflab call", 0, 1000),
        Noted(PREFIX + "heavy", 0, 500),
        Noted("aten::mm", 10, 90, correlation=1),
        Noted("cudaLaunchKernel", 20, 30, correlation=7),
        Noted("Optimizer.step#AdamW.step", 600, 900, annotation=True),
        Noted(PREFIX + "optimiser", 600, 900),
        Noted("cuLaunchKernelEx", 700, 710, correlation=9),
        Noted("gemm", 100, 400, "CUDA", correlation=7, linked=1),
        Noted("triton_kernel", 720, 800, "CUDA", correlation=9),
        Noted("Optimizer.step#AdamW.step", 720, 800, "CUDA", annotation=True),
        Noted(PREFIX + "heavy", 100, 400, "CUDA", annotation=True),
        Noted("strange", 900, 910, "CUDA", correlation=99),
    ]
    found = _device_parts(events)
    assert {key: (round(1e9 * one.seconds), one.launches) for key, one in found.items()} == {
        ("heavy", "forward"): (300, 1), ("optimiser", "update"): (80, 1), ("other", "forward"): (10, 1),
    }  # fmt: skip


def test_a_part_that_only_some_calls_have_is_kept():
    plain = Observed(1.0, {("a", "forward"): Measured(1.0, 1, 1)})
    other = Observed(1.0, {("a", "forward"): Measured(0.5, 1, 1), ("b", "update"): Measured(0.5, 2, 1)})
    found = {one.name: one for one in combine([plain, other, other], 4.0, 0.0, "cpu")["parts"]}
    assert (found["a"].seconds, found["b"].seconds) == pytest.approx((2.0, 2.0))
