"""The check: every token is compared, whatever the chunk; memory starts as NaN; draws differ."""

import dataclasses

import pytest
import torch

from perflab import Stage, Tensor, Tolerance
from perflab.measure import comparison
from perflab.measure.check import Subject, Wrong, check

STAGE = Stage(
    dims=("T", "C"),
    inputs={"x": Tensor("T C"), "w": Tensor("C", "fp32")},
    outputs={"y": Tensor("T C")},
    tolerances={"fp32": {"y": Tolerance(1e-6, 1e-5)}},
    source="nowhere",
)


def reference(x, w):
    return x * w


def subject(function):
    return Subject(STAGE, reference, function, "fp32", "cpu")


@pytest.mark.parametrize("chunk_bytes", [1, 100, 2**30])
@pytest.mark.parametrize("token", [0, 5, 12])
def test_one_wrong_token_is_seen_wherever_it_is(monkeypatch, chunk_bytes, token):
    monkeypatch.setattr(comparison, "CHUNK_BYTES", chunk_bytes)

    def function(x, w):
        y = x * w
        y[token, 0] += 1
        return y

    with pytest.raises(Wrong, match="relative l2 error"):
        check(subject(function), {"T": 13, "C": 3}, [0])
    assert check(subject(lambda x, w: x * w), {"T": 13, "C": 3}, [0]).max_abs_error < 1e-6


@pytest.mark.parametrize("tokens", [0, 1])
def test_no_tokens_and_one_token_are_checked(tokens):
    assert check(subject(lambda x, w: x * w), {"T": tokens, "C": 3}, [0, 1]).draws == 2


@pytest.mark.parametrize("make", [torch.empty_like, lambda x: torch.empty(x.shape), lambda x: x.new_empty(x.shape)])
def test_memory_that_is_never_written_cannot_pass(make):
    with pytest.raises(Wrong) as error:
        check(subject(lambda x, w: make(x * w)), {"T": 3, "C": 3}, [0])
    assert error.value.code == "not_finite"


def test_an_answer_remembered_from_an_earlier_draw_is_refused():
    kept = []

    def function(x, w):
        if not kept:
            kept.append(x * w)
        return kept[0]

    with pytest.raises(Wrong):
        check(subject(function), {"T": 3, "C": 3}, [0, 1])


def test_answers_that_differ_between_two_calls_are_noted():
    calls = []

    def function(x, w):
        calls.append(0)
        return x * w * (1 + 1e-7 * (len(calls) % 2))

    assert check(subject(function), {"T": 3, "C": 3}, [0]).deterministic is False


@pytest.mark.parametrize(("off", "passes"), [(0.9e-3, True), (1.1e-3, False)])
def test_an_absolute_allowance_covers_what_rounding_leaves_of_a_difference_and_no_more(off, passes):
    tolerances = {"fp32": {"y": Tolerance(1e-6, 1e-5, absolute=1e-3)}}
    lenient = Subject(
        dataclasses.replace(STAGE, tolerances=tolerances), reference, lambda x, w: x * w + off, "fp32", "cpu"
    )
    if passes:
        error = check(lenient, {"T": 30, "C": 3}, [0]).outputs["y"]
        assert error.relative_l2_error == error.elementwise_error == 0
        assert error.max_abs_error == pytest.approx(off, rel=1e-3), "what is allowed is recorded all the same"
    else:
        with pytest.raises(Wrong, match="relative l2 error"):
            check(lenient, {"T": 30, "C": 3}, [0])


def test_the_settings_of_torch_are_as_before():
    before = torch.get_deterministic_debug_mode()
    check(subject(lambda x, w: x * w), {"T": 3, "C": 3}, [0])
    assert torch.get_deterministic_debug_mode() == before


@pytest.mark.parametrize("broken", [lambda x, w: (x * w)[:1], lambda x, w: (x * w) / 0 * 0])
def test_a_reference_that_cannot_be_compared_with_passes_nothing(broken):
    with pytest.raises(comparison.BrokenReferenceError):
        check(Subject(STAGE, broken, lambda x, w: x * w, "fp32", "cpu"), {"T": 3, "C": 3}, [0])
