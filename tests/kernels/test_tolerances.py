"""Tolerances are tight enough to refuse every mistake and loose enough for honest rounding."""

import pytest
import torch

from perflab.catalogue import discover, load_module
from perflab.measure.check import Subject, Wrong, check
from tests.conftest import ROOT

STAGES = discover(ROOT / "kernels").stages
SHAPE = {"T": 96, "n": 4, "C": 320, "L": 3, "L_r": 2, "t_max": 20, "s": 3}
SEEDS = range(20)


def subject(stage, implementation, dtype):
    reference = getattr(load_module(stage.folder / "reference.py"), stage.function)
    function = getattr(load_module(implementation.path), stage.function)
    return Subject(stage.contract, reference, function, dtype, "cpu")


def shape_of(stage):
    return {dim: SHAPE[dim] for dim in stage.contract.dims}


HONEST = [(s.name, "eager", dtype) for s in STAGES.values() for dtype in s.contract.dtypes]
MISTAKES = [(s.name, wrong.stem, dtype) for s in STAGES.values() for wrong in s.wrong for dtype in s.contract.dtypes]


@pytest.mark.parametrize(("name", "stem", "dtype"), HONEST)
def test_honest_rounding_passes_for_20_seeds(name, stem, dtype):
    stage = STAGES[name]
    eager = next(i for i in stage.implementations if i.stem == stem)
    for seed in SEEDS:
        with torch.no_grad():
            accuracy = check(subject(stage, eager, dtype), shape_of(stage), [seed])
        assert accuracy.deterministic


@pytest.mark.parametrize(("name", "stem", "dtype"), MISTAKES)
def test_every_mistake_is_refused_for_20_seeds(name, stem, dtype):
    stage = STAGES[name]
    wrong = next(i for i in stage.wrong if i.stem == stem)
    for seed in SEEDS:
        with pytest.raises(Wrong), torch.no_grad():
            check(subject(stage, wrong, dtype), shape_of(stage), [seed])


def rounded_once(stage, dtype):
    """The reference itself, rounded to the output's dtype: the best that any implementation can do."""
    from perflab.measure.inputs import TORCH_DTYPES

    reference = getattr(load_module(stage.folder / "reference.py"), stage.function)

    def function(*inputs, **params):
        result = reference(*(tensor.double() for tensor in inputs), **params)
        outputs = result if isinstance(result, tuple) else (result,)
        dtypes = [TORCH_DTYPES[spec.item_dtype(dtype)] for spec in stage.contract.outputs.values()]
        return tuple(output.to(kind) for output, kind in zip(outputs, dtypes, strict=True))

    return Subject(stage.contract, reference, function, dtype, "cpu")


@pytest.mark.parametrize("name", STAGES)
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
