"""Tolerances are tight enough to refuse every mistake and loose enough for honest rounding."""

import pytest
import torch

from perflab import TrainingStage
from perflab.catalogue import discover, load_module
from perflab.measure.check import Subject, Wrong, check
from tests.conftest import ROOT

#: Those of tensors; steps and pipelines have tests of their own.
STAGES = {
    name: stage
    for name, stage in discover(ROOT / "kernels").stages.items()
    if not isinstance(stage.contract, TrainingStage)
}
SHAPE = {"T": 96, "n": 4, "C": 320, "L": 3, "L_r": 2, "t_max": 20, "s": 3}
#: Stages made of others take longer, and their parts are tested by themselves.
COMPOSITES = ("mhc/read", "mhc/site", "mhc/stack")


def seeds_of(stage):
    return range(4 if stage.name in COMPOSITES else 20)


def subject(stage, implementation, dtype, pass_=None):
    reference = getattr(load_module(stage.folder / "reference.py"), stage.function)
    function = getattr(load_module(implementation.path), stage.function)
    return Subject(stage.contract, reference, function, dtype, "cpu", pass_ or full_pass(stage))


def full_pass(stage):
    """The pass that checks outputs and gradients, where there are any."""
    return "forward_backward" if stage.contract.differentiable else "forward"


def shape_of(stage):
    return {dim: SHAPE[dim] for dim in stage.contract.dims}


HONEST = [(s.name, "eager", dtype) for s in STAGES.values() for dtype in s.contract.dtypes]
MISTAKES = [(s.name, wrong.stem, dtype) for s in STAGES.values() for wrong in s.wrong for dtype in s.contract.dtypes]


@pytest.mark.parametrize(("name", "stem", "dtype"), HONEST)
def test_honest_rounding_passes_whatever_the_draw(name, stem, dtype):
    stage = STAGES[name]
    eager = next(i for i in stage.implementations if i.stem == stem)
    for seed in seeds_of(stage):
        assert check(subject(stage, eager, dtype), shape_of(stage), [seed]).deterministic


@pytest.mark.parametrize(("name", "stem", "dtype"), MISTAKES)
def test_every_mistake_is_refused_whatever_the_draw(name, stem, dtype):
    """In the forward pass, or where the values are right and only the gradients are not, in the backward pass."""
    stage = STAGES[name]
    wrong = next(i for i in stage.wrong if i.stem == stem)
    only_backward = not refused(subject(stage, wrong, dtype, "forward"), shape_of(stage), 0)
    for seed in seeds_of(stage):
        assert refused(
            subject(stage, wrong, dtype, full_pass(stage) if only_backward else "forward"), shape_of(stage), seed
        )


def refused(subject, shape, seed):
    try:
        check(subject, shape, [seed])
    except Wrong:
        return True
    return False


@pytest.mark.parametrize(
    "stem",
    [
        "mhc/read/wrong/missing_norm_term",
        "mhc/site/wrong/missing_write_term",
        "mhc/project/wrong/backward_eps",
        "mhc/project/wrong/bf16_phi_gradient",
        "mhc/sinkhorn/wrong/linearised",
        "mhc/pre/wrong/stale_gradient",
        "mhc/stack/wrong/stale_streams",
    ],
)
def test_mistakes_of_backward_have_right_values(stem):
    """They are refused for their gradients alone, so that it is the backward check which refuses them."""
    name, _, file = stem.partition("/wrong/")
    stage = STAGES[name]
    wrong = next(i for i in stage.wrong if i.stem == f"wrong/{file}")
    check(subject(stage, wrong, "fp32", "forward"), shape_of(stage), [0])
    for pass_ in ("backward", "forward_backward"):
        with pytest.raises(Wrong, match="grad_"):
            check(subject(stage, wrong, "fp32", pass_), shape_of(stage), [0])


#: As the suite `backward` checks what runs in an interpreter: rounding hides more in wide rows and few tokens.
SUITE_SHAPE = {"T": 33, "n": 4, "C": 2560}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*[("mhc/project", dtype) for dtype in ("bf16", "fp16", "fp32")], ("mhc/read", "fp32"), ("mhc/site", "fp32")],
)
def test_at_the_suites_shape_mistakes_are_refused_and_honest_answers_are_not(name, dtype):
    stage = STAGES[name]
    eager = next(i for i in stage.implementations if i.stem == "eager")
    for seed in range(6):
        check(subject(stage, eager, dtype), SUITE_SHAPE, [seed])
    for wrong in stage.wrong:
        for seed in range(3):
            assert refused(subject(stage, wrong, dtype), SUITE_SHAPE, seed), wrong.stem


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_honest_reads_pass_at_the_suites_shape_in_16_bits(dtype):
    """grad_a sums over all tokens and may nearly cancel."""
    stage = STAGES["mhc/read"]
    eager = next(i for i in stage.implementations if i.stem == "eager")
    for seed in range(16):
        check(subject(stage, eager, dtype), SUITE_SHAPE, [seed])


def test_the_norms_bound_allows_a_sum_in_the_worst_order():
    """One square after the other into one fp32 number, as compiled code may add: the error is near the bound, not 0."""
    x = torch.randn(64, 10240, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    total = torch.zeros(64)
    for square in x.square().unbind(1):
        total += square
    r, exact = (total / 10240).sqrt(), x.double().square().mean(1).sqrt()
    error = ((r - exact).norm() / exact.norm()).item()
    bound = STAGES["mhc/project"].contract.tolerance("fp32", "r").relative_l2
    assert bound / 10 < error < bound


def rounded_once(stage, dtype):
    """The reference itself, rounded to the output's dtype: the best that any implementation can do."""
    from perflab.measure.inputs import TORCH_DTYPES

    reference = getattr(load_module(stage.folder / "reference.py"), stage.function)

    def function(*inputs, **params):
        result = reference(*(tensor.double() for tensor in inputs), **params)
        outputs = result if isinstance(result, tuple) else (result,)
        dtypes = [TORCH_DTYPES[spec.item_dtype(dtype)] for spec in stage.contract.outputs.values()]
        return tuple(output.to(kind) for output, kind in zip(outputs, dtypes, strict=True))

    return Subject(stage.contract, reference, function, dtype, "cpu", full_pass(stage))


@pytest.mark.parametrize("name", [name for name in STAGES if name not in COMPOSITES])
def test_bounds_lie_near_what_rounding_alone_costs(name):
    """A bound that a correctly rounded answer uses less than a thousandth of is no bound in that dtype.

    An answer that is a number of its dtype, such as 1, costs nothing; then the least that rounding usually costs counts.
    """
    least = torch.finfo(torch.float32).eps / 8
    stage = STAGES[name]
    for dtype in stage.contract.dtypes:
        accuracy = check(rounded_once(stage, dtype), shape_of(stage), [0])
        for error in accuracy.outputs.values():
            assert error.relative_l2_error <= error.tolerance_l2 <= 1000 * max(error.relative_l2_error, least)


@pytest.mark.parametrize("stem", ["one_iteration_short", "row_first", "row_maximum"])
@pytest.mark.parametrize("std", [1.0, 3.0, 8.0])
def test_sinkhorn_mistakes_are_refused_at_every_scale_alone(stem, std):
    """The contract mixes three scales in one draw; each of them must tell the mistakes on its own."""
    import dataclasses

    from perflab import Normal

    stage = STAGES["mhc/sinkhorn"]
    wrong = next(i for i in stage.wrong if i.stem == f"wrong/{stem}")
    logits = dataclasses.replace(stage.contract.inputs["logits"], values=Normal(std=std))
    contract = dataclasses.replace(stage.contract, inputs={"logits": logits})
    whole = dataclasses.replace(subject(stage, wrong, "fp32"), stage=contract)
    with pytest.raises(Wrong) as error, torch.no_grad():
        check(whole, {"T": 256, "n": 4}, [0])
    assert error.value.code == "wrong_value"
