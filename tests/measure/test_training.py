"""Training steps end to end: checked, sampled in rounds, their time told apart, by a workspace of its own."""

import json

import pytest
import training_workspace

from perflab.measure import sampling
from tests.conftest import ROOT


@pytest.fixture
def steps(tmp_path):
    return training_workspace.make(tmp_path / "ws")


def run(perflab, folder, *arguments):
    result = perflab("run", "suite", "--quiet", "--format", "json", *arguments, cwd=folder)
    assert result.stdout, result.stderr
    return result, {one["implementation"].removeprefix("toy/step/"): one for one in json.loads(result.stdout)}


def test_a_step_has_an_overhead_with_its_interval_and_parts_that_add_up(perflab, steps):
    result, found = run(perflab, steps)
    assert result.returncode == 0, result.stderr
    plain, deep = found["plain"], found["deep"]
    assert {one["status"] for one in found.values()} == {"passed"}
    assert plain["label"] == "small" and plain["shape"] == {"S": 64, "C": 96} and plain["baseline"] == "plain"
    assert plain["accuracy"]["shape"] == {"S": 32, "C": 96} and "checked at S=32" in " ".join(plain["warnings"])
    assert set(plain["accuracy"]["outputs"]) > {"loss"} and len(plain["accuracy"]["outputs"]) == 3
    assert len(plain["latency"]["block_starts"]) == len(deep["latency"]["block_starts"]) >= 6
    derived = deep["derived"]
    assert 0 < derived["overhead_low"] <= derived["overhead"] <= derived["overhead_high"]
    assert plain["derived"]["overhead"] is None
    # What profiling an event takes is the machine's: one number for both, from the profiles of both.
    assert 0 <= deep["step"]["profiler_s"] == plain["step"]["profiler_s"] < 1e-4
    told = " ".join(deep["warnings"])
    assert ("profile off" in told) == (abs(deep["step"]["profile_error"]) > 0.1)
    rounds = len(deep["latency"]["block_starts"])
    assert deep["step"]["collector"] == f"torch.profiler, {sum(one <= rounds for one in sampling.PROFILED)} steps"
    seconds = {(part["name"], part["phase"]): part["seconds"] for part in deep["step"]["parts"]}
    assert seconds["layers", "forward"] > 2 * seconds["head", "forward"]
    assert seconds["layers", "backward"] > 2 * seconds["head", "backward"]
    assert {"embedding", "optimiser"} <= {name for name, _ in seconds}
    assert deep["derived"]["saved_bytes"] > plain["derived"]["saved_bytes"] > 0
    assert deep["derived"]["traffic_bytes"] > plain["derived"]["traffic_bytes"] > 0


def test_the_table_shows_the_overhead_and_not_a_speedup(perflab, steps):
    text = perflab("run", "suite", "--quiet", cwd=steps).stdout
    assert "overhead" in text and "[" in text and "vs eager" not in text and "small" in text and "utilisation" in text


def test_too_few_rounds_are_undecided(perflab, tmp_path):
    folder = training_workspace.make(tmp_path / "ws", seconds=0.05)
    _, found = run(perflab, folder)
    assert found["deep"]["status"] == "passed", found["deep"]["reason"]
    assert found["deep"]["derived"]["overhead"] is None
    assert any(text.startswith("undecided") for text in found["deep"]["warnings"])
    assert not any(text.startswith("undecided") for text in found["plain"]["warnings"])
    # No round came in which steps are profiled; what the model says of itself stands all the same.
    assert found["deep"]["step"]["tokens"] == 64 and not found["deep"]["step"]["parts"]
    assert any("not attributed: there were too few rounds" in text for text in found["deep"]["warnings"])


def test_a_step_that_cannot_be_profiled_is_timed_and_says_why(perflab, steps):
    """As code does that looks whether somebody watches."""
    model = steps / "kernels" / "toy" / "step" / "deep.py"
    text = model.read_text().replace("from ._model import Model", "import torch\n\nfrom ._model import Model")
    text += """

class Watched(Model):
    def step(self, tokens):
        if torch.autograd._profiler_enabled():
            raise RuntimeError("nobody looks at this")
        return super().step(tokens)


def step(shape, dtype, device, seed):
    return Watched(shape, device, seed, times=12)
"""
    model.write_text(text)
    result, found = run(perflab, steps)
    assert result.returncode == 0, result.stderr
    deep = found["deep"]
    assert deep["status"] == "passed" and deep["derived"]["overhead"] > 0 and deep["step"]["flops"] > 0
    assert not deep["step"]["parts"] and found["plain"]["step"]["parts"]
    assert any("not attributed: RuntimeError: nobody looks at this" in text for text in deep["warnings"])


def test_a_wide_interval_is_undecided(perflab, tmp_path):
    folder = training_workspace.make(tmp_path / "ws", seconds=4, overhead=1e-9)
    _, found = run(perflab, folder)
    assert any(text.startswith("undecided") for text in found["deep"]["warnings"])


@pytest.mark.parametrize("mistake", ["told_otherwise", "other_rate"])
def test_a_wrong_gradient_or_update_has_no_time(perflab, steps, mistake):
    result, found = run(perflab, steps, "--only", f"*/wrong/{mistake}")
    record = found[f"wrong/{mistake}"]
    assert result.returncode == 1 and record["status"] == "wrong" and record["latency"] is None
    assert record["reason"]["code"] == "wrong_output"


LAZY = '''"""A network that grows lazy."""

import itertools

import torch

from ._model import Model

REQUIRES = ("torch",)
CONVENTION = {{"times": "1"}}
CALLS = itertools.count()


class Lazy(Model):
    factor = 1.0

    def step(self, tokens):
        self.age = getattr(self, "age", 0) + 1
        if {late}:
            {instead}
        return super().step(tokens)

    def gradients(self, tokens):
        found = super().gradients(tokens)
        return {{name: one if name == "loss" else one * self.factor for name, one in found.items()}}


def step(shape, dtype, device, seed):
    return Lazy(shape, device, seed)
'''


@pytest.mark.parametrize("late", ["self.age > 5", "next(CALLS) > 40"])
@pytest.mark.parametrize("instead", ["return torch.zeros(())", "self.factor = 1.1"])
def test_a_step_that_changes_after_its_check_has_no_time(perflab, steps, late, instead):
    """As a model's does that no longer updates, or errs in its gradients, once the checked steps are over."""
    (steps / "kernels" / "toy" / "step" / "deep.py").write_text(LAZY.format(late=late, instead=instead))
    result, found = run(perflab, steps)
    deep = found["deep"]
    assert result.returncode == 1 and deep["status"] == "wrong" and deep["latency"] is None
    assert deep["reason"]["text"].startswith("after sampling: "), deep["reason"]
    assert found["plain"]["status"] == "passed"


MONOTONOUS = '''"""The plain residual on batches of which every second is one byte again and again."""

import torch

import perflab

training = perflab.load("mhc/model/training")
REQUIRES = ("torch",)
CONVENTION = {"residual": "residual"}


class Monotonous(training.Training):
    def batch(self, index):
        tokens = super().batch(index)
        return torch.full_like(tokens, 32) if index % 2 else tokens


def step(shape, dtype, device, seed):
    return Monotonous(shape, training.Design("residual"), dtype, device, seed)
'''


def test_a_batch_at_which_gradients_vanish_refuses_nobody(perflab, tmp_path):
    """Attention over one token again and again has gradients of 0, and of rounding."""
    (tmp_path / "monotonous.py").write_text(MONOTONOUS)
    result = perflab(
        "run", "case", "mhc/step/monotonous", "--kernels", str(tmp_path / "monotonous.py"), "-p", "layers=2", "-p", "S=32",
        "-p", "B=1", "--dtype", "fp32", "--workspace", str(ROOT), "--results", str(tmp_path / "r"), cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr


def test_a_step_is_planned_without_torch_and_an_unknown_preset_is_told(perflab, steps):
    text = perflab("plan", cwd=steps).stdout
    assert "toy/step" in text and "small" in text
    suite = steps / "suites" / "quick.toml"
    suite.write_text(suite.read_text().replace('"small"', '"smal"'))
    result = perflab("plan", cwd=steps)
    assert result.returncode == 2 and "small" in result.stderr


def test_passes_that_a_stage_lacks_are_refused(perflab, steps):
    suite = steps / "suites" / "quick.toml"
    suite.write_text(suite.read_text().replace('dtypes = ["fp32"]', 'dtypes = ["fp32"]\npasses = ["backward"]'))
    result = perflab("plan", cwd=steps)
    assert result.returncode == 2 and "step" in result.stderr and "backward" in result.stderr


def test_one_case_runs_beside_its_baseline(perflab, steps):
    result = perflab(
        "run", "case", "toy/step/deep", "-p", "S=16", "--dtype", "fp32", "--format", "json", "--quiet", cwd=steps
    )
    found = {one["implementation"]: one for one in json.loads(result.stdout)}
    assert set(found) == {"toy/step/deep", "toy/step/plain"}, result.stderr
    assert found["toy/step/deep"]["label"] == "small S=16"
