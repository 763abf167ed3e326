"""Plans: what is crossed, what is skipped and why."""

import pytest

from perflab import suite as suites
from perflab.catalogue import discover
from perflab.errors import PerflabError
from perflab.plan import make_plan
from tests.conftest import ROOT

CATALOGUE = discover(ROOT / "kernels")


def suite(**group):
    # Every dim of every stage, so that a group may name them all.
    sizes = {dim: 1 for stage in CATALOGUE.stages.values() for dim in stage.contract.dims}
    sizes |= {"T": 8, "n": 4, "C": 64, "L": 2, "t_max": 2}
    return suites.parse({"question": "?", "group": [{"shape": sizes, **group}]}, "here")


def test_a_stage_takes_its_own_dims_and_equal_shapes_become_one_group():
    plan = make_plan(suite(stages=["mhc/sinkhorn"], shape={"T": 8, "n": 4, "C": [64, 128]}), CATALOGUE, "cpu")
    assert [group.shape for group in plan.groups] == [{"T": 8, "n": 4}]


def test_a_stage_without_streams_is_planned_in_fp32_once():
    plan = make_plan(suite(stages=["mhc/sinkhorn"], dtypes=["bf16", "fp16"]), CATALOGUE, "cpu")
    assert [group.dtype for group in plan.groups] == ["fp32"]


def test_only_takes_full_names_stages_stems_and_toolkits():
    def names(*only):
        return {case.implementation.name for case in make_plan(suite(), CATALOGUE, "cpu", only).cases()}

    assert names("mhc/pre/eager") == {"mhc/pre/eager"}
    assert all(name.startswith("mhc/pre/") for name in names("mhc/pre"))
    assert {name.rpartition("/")[0] for name in names("eager")} == set(CATALOGUE.stages)
    assert names("mhc/sinkhorn/wrong/*") == {i.name for i in CATALOGUE.stage("mhc/sinkhorn").wrong}


def test_mistakes_are_planned_only_where_asked_for():
    assert not any("wrong" in case.id for case in make_plan(suite(), CATALOGUE, "cpu").cases())


def test_an_absent_device_and_an_undefined_size_are_skips_with_reasons():
    absent = make_plan(suite(), CATALOGUE, "cuda", available=False)
    assert {case.blocked[1].code for case in absent.cases()} == {"no_device"}
    odd = make_plan(suite(stages=["mhc/pre"], shape={"T": 8, "n": 3, "C": 64}), CATALOGUE, "cpu")
    assert {case.blocked[0] for case in odd.cases()} == {"skipped"}
    assert {case.blocked[1].code for case in odd.cases()} == {"unsupported_shape"}


@pytest.mark.parametrize(
    ("group", "only", "told"),
    [
        ({"stages": ["mhc/prj"]}, [], "did you mean mhc/pre"),
        ({"implementations": ["egaer"]}, [], "did you mean eager"),
        ({}, ["mhc/pre/eagre"], "did you mean mhc/pre/eager"),
        ({"shape": {"T": 8}}, [], "has no n"),
    ],
)
def test_names_and_shapes_that_fit_nothing_are_errors(group, only, told):
    with pytest.raises(PerflabError, match=told):
        make_plan(suite(**group), CATALOGUE, "cpu", only)


def test_what_is_left_after_some_cases_are_done():
    plan = make_plan(suite(stages=["mhc/residual"]), CATALOGUE, "cpu")
    first, *rest = [case.id for case in plan.cases()]
    assert [case.id for case in plan.without({first}).cases()] == rest
    assert not plan.without({first, *rest}).groups


def test_a_pass_that_cannot_be_is_a_skip_with_its_reason():
    nothing = make_plan(suite(stages=["mhc/recompute"], passes=["backward"]), CATALOGUE, "cpu")
    assert {case.blocked[1].code for case in nothing.cases()} == {"no_backward"}
    assert not any(
        case.blocked for case in make_plan(suite(stages=["mhc/pre"], passes=["backward"]), CATALOGUE, "cpu").cases()
    )


def test_case_ids_differ():
    ids = [case.id for case in make_plan(suites.load("stages", ROOT / "suites"), CATALOGUE, "cpu").cases()]
    assert len(set(ids)) == len(ids)
