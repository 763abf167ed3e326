"""The pytest way in: pytest-benchmark on every implementation that runs natively on a CPU.

    pytest benchmarks/test_implementations.py --benchmark-group-by=group

An answer is checked before it is timed, as everywhere. These are single-process times: `perflab run` samples the
implementations of a group in turn, which drift and noise disturb less.
"""

from pathlib import Path

import pytest
import torch

from perflab.catalogue import discover, load_module
from perflab.measure import check, inputs
from perflab.measure.task import NATIVE_ON_CPU

CATALOGUE = discover(Path(__file__).resolve().parent.parent / "kernels")
SIZES = {"T": 64, "n": 4, "C": 1280}
NATIVE = [i for i in CATALOGUE.implementations() if i.toolkit in NATIVE_ON_CPU]


@pytest.mark.parametrize("implementation", NATIVE, ids=lambda implementation: implementation.name)
def test_implementation(benchmark, implementation):
    """One implementation in the first dtype of its stage."""
    stage = CATALOGUE.stage(implementation.stage)
    shape, dtype = {dim: SIZES[dim] for dim in stage.contract.dims}, stage.contract.dtypes[0]
    function = getattr(load_module(implementation.path), stage.function)
    reference = getattr(load_module(stage.folder / "reference.py"), stage.function)
    poison = implementation.toolkit != "compiled"
    given = inputs.draw(stage.contract, shape, dtype, "cpu", seed=0)
    benchmark.group = f"{stage.name} {dtype}"
    benchmark.extra_info["compulsory_bytes"] = stage.contract.compulsory(shape, dtype).total_bytes
    with torch.no_grad():
        check.check(check.Subject(stage.contract, reference, function, dtype, "cpu", poison), shape, [0])
        benchmark(function, *given.values(), **stage.contract.params)
