"""What a pass computes: gradients against autograd of the reference, and what is refused or skipped."""

import dataclasses

import pytest
import torch

from perflab import Normal, Stage, Tensor, Tolerance
from perflab.measure import passes
from perflab.measure.check import Subject, Wrong, check, check_in_place
from perflab.measure.passes import NoBackward, Work

STAGE = Stage(
    dims=("T", "C"),
    inputs={"x": Tensor("T C"), "w": Tensor("C", "fp32"), "k": Tensor("C", "fp32", differentiable=False)},
    outputs={"y": Tensor("T C"), "s": Tensor("T", "fp32")},
    tolerances={"fp32": {"*": Tolerance(1e-6, 1e-5)}},
    backward_reads=("x", "w", "k"),
    source="nowhere",
)
SHAPE = {"T": 13, "C": 3}


def reference(x, w, k):
    y = x * w + k
    return y, y.square().sum(1)


def subject(function, pass_="forward_backward", **options):
    return Subject(STAGE, reference, function, "fp32", "cpu", pass_, **options)


class _Scaled(torch.autograd.Function):
    """The reference's values with gradients of one's own."""

    @staticmethod
    def forward(ctx, x, w, k, backward):
        ctx.save_for_backward(x, w, k)
        ctx.how = backward
        return reference(x, w, k)

    @staticmethod
    def backward(ctx, dy, ds):
        x, w, k = ctx.saved_tensors
        total = dy + 2 * (x * w + k) * ds[:, None]
        return (*ctx.how(total, x, w, dy), None, None)


def with_backward(how):
    return lambda x, w, k: _Scaled.apply(x, w, k, how)


def right(total, x, w, dy):
    return total * w, (total * x).sum(0)


@pytest.mark.parametrize("pass_", ["backward", "forward_backward"])
@pytest.mark.parametrize("function", [reference, with_backward(right)])
def test_right_gradients_pass_and_are_recorded_by_name(function, pass_):
    accuracy = check(subject(function, pass_), SHAPE, [0, 1, 2, 3])
    assert list(accuracy.outputs) == ["y", "s", "grad_x", "grad_w"]
    assert accuracy.deterministic and accuracy.draws == 4


@pytest.mark.parametrize("chunk_bytes", [1, 100, 2**30])
def test_chunks_of_tokens_do_not_change_a_gradient_that_sums_over_all(monkeypatch, chunk_bytes):
    monkeypatch.setattr("perflab.measure.comparison.GRADIENT_CHUNK_BYTES", chunk_bytes)
    assert check(subject(reference), SHAPE, [0]).relative_l2_error < 1e-6


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda total, x, w, dy: (dy * w, (total * x).sum(0)), "grad_x: relative l2"),
        (lambda total, x, w, dy: (total * w, (dy * x).sum(0)), "grad_w: relative l2"),
        (lambda total, x, w, dy: (total * w, None), "grad_w: relative l2"),
        (lambda total, x, w, dy: (total * w, (total * x)[:-1].sum(0)), "grad_w: relative l2"),
        (lambda total, x, w, dy: (torch.empty_like(x), (total * x).sum(0)), "elements of grad_x are NaN"),
        (lambda total, x, w, dy: (total * w, total.mul_(x).sum(0) + dy.zero_().sum(0)), "gradient of y was changed"),
    ],
)
@pytest.mark.parametrize("pass_", ["backward", "forward_backward"])
def test_wrong_gradients_are_refused(how, said, pass_):
    with pytest.raises(Wrong, match=said):
        check(subject(with_backward(how), pass_), SHAPE, [0])


def test_the_forward_pass_does_not_look_at_gradients():
    assert list(check(subject(with_backward(lambda *_: (None, None)), "forward"), SHAPE, [0]).outputs) == ["y", "s"]


def test_a_function_that_only_works_with_all_gradients_wanted_is_refused():
    """Later draws freeze some inputs."""

    def function(x, w, k):
        if not w.requires_grad:
            return tuple(output * 2 for output in reference(x, w, k))
        return reference(x, w, k)

    check(subject(function), SHAPE, [0])
    with pytest.raises(Wrong):
        check(subject(function), SHAPE, list(range(8)))
    # What is compiled anew for other inputs is checked as it is timed.
    check(subject(function, recompiles=True), SHAPE, list(range(8)))


def test_an_output_that_is_detached_is_wrong_and_a_function_without_gradients_has_no_backward():
    with pytest.raises(Wrong, match="grad_"):
        check(subject(lambda x, w, k: (reference(x, w, k)[0], reference(x, w, k)[1].detach())), SHAPE, [0])
    with pytest.raises(NoBackward, match="carry no gradient"):
        check(subject(lambda x, w, k: tuple(t.detach() for t in reference(x, w, k))), SHAPE, [0])


def test_answers_are_checked_again_in_the_sampled_tensors():
    whole = subject(with_backward(right), "backward")
    work = whole.work(SHAPE, 0)
    work.prepare()
    work.call()
    assert check_in_place(whole, work, SHAPE, 5).relative_l2_error < 1e-6
    tired = []

    def tires(total, x, w, dy):
        tired.append(1)
        return right(total, x, w, dy) if len(tired) < 3 else (total, w)

    whole = subject(with_backward(tires), "backward")
    work = whole.work(SHAPE, 0)
    work.prepare()
    work.call()
    work.call()
    with pytest.raises(Wrong, match="grad_"):
        check_in_place(whole, work, SHAPE, 5)


def test_a_backward_that_remembers_its_gradients_is_refused():
    """Its graph is timed again and again with the same incoming gradients; then others arrive."""

    class Remembers(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, k):
            ctx.save_for_backward(x, w, k)
            ctx.found = None
            return reference(x, w, k)

        @staticmethod
        def backward(ctx, dy, ds):
            x, w, k = ctx.saved_tensors
            if ctx.found is None:
                total = dy + 2 * (x * w + k) * ds[:, None]
                ctx.found = (total * w, (total * x).sum(0), None)
            return ctx.found

    whole = subject(Remembers.apply, "backward")
    work = whole.work(SHAPE, 0)
    work.prepare()
    work.call()
    with pytest.raises(Wrong, match="grad_"):
        check_in_place(whole, work, SHAPE, 5)


def test_backward_walks_one_graph_any_number_of_times_and_forward_makes_none():
    runs = []

    def function(x, w, k):
        runs.append(torch.is_grad_enabled())
        return reference(x, w, k)

    for pass_, expected in (("forward", [False] * 3), ("backward", [True]), ("forward_backward", [True] * 3)):
        runs.clear()
        given, cotangents = passes.draw(STAGE, SHAPE, ("fp32", "cpu"), pass_, 0)
        work = Work(STAGE, function, pass_, SHAPE, given, cotangents)
        work.prepare()
        for _ in range(3):
            work.call()
        assert runs == expected


def test_inputs_without_a_gradient_are_not_asked_for_one():
    given, cotangents = passes.draw(STAGE, SHAPE, ("fp32", "cpu"), "backward", 0)
    assert [name for name, tensor in given.items() if tensor.requires_grad] == ["x", "w"]
    assert list(cotangents) == ["y", "s"]
    # Cotangents are no copies of the inputs: they come from other draws.
    assert not torch.equal(cotangents["y"], given["x"])


def test_params_and_deviations_may_be_expressions_of_the_dims():
    stage = dataclasses.replace(
        STAGE,
        inputs={"x": Tensor("T C", values=Normal(std="10*C"))},
        outputs={"y": Tensor("T C")},
        params={"power": "C-1", "eps": 0.5},
    )
    seen = []

    def function(x, power, eps):
        seen.append((power, eps, x.std().item()))
        return x * power + eps

    check(Subject(stage, function, function, "fp32", "cpu"), {"T": 1000, "C": 3}, [0])
    assert seen[0][:2] == (2, 0.5)
    assert seen[0][2] == pytest.approx(30, rel=0.1)
