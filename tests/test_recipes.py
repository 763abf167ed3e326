"""The "add one" recipes of the READMEs, followed to the letter in a workspace of their own."""

import json
import re
import shlex
import shutil

import pytest

from tests.conftest import ROOT

BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


@pytest.fixture
def copy(tmp_path):
    """This repository's workspace, without its results."""
    for folder in ("kernels", "suites", "dashboards"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def recipe(folder, heading):
    """Files to write and commands to run of one recipe."""
    text = (ROOT / folder / "README.md").read_text()
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    files, commands = {}, []
    for language, body in BLOCK.findall(section):
        if language == "console":
            commands += [line.removeprefix("$ perflab ") for line in body.splitlines()]
        else:
            first, _, rest = body.partition("\n")
            files[first.removeprefix("# ")] = rest
    assert files
    assert commands
    return files, commands


def follow(folder, heading, copy, perflab):
    files, commands = recipe(folder, heading)
    for path, text in files.items():
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_text(text)
    results = []
    for command in commands:
        result = perflab(*shlex.split(command), cwd=copy)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        results.append(result)
    return results


def test_add_an_implementation(copy, perflab):
    files, _ = recipe("kernels", "Add an implementation")
    (path,) = files
    (copy / path).write_text(files[path])
    stage, stem = path.removeprefix("kernels/").removesuffix(".py").rsplit("/", 1)
    result = perflab("run", "case", f"{stage}/{stem}", "-p", "T=64", "-p", "C=256", "--format", "json", cwd=copy)
    assert result.returncode == 0, result.stderr
    found = {record["implementation"]: record for record in json.loads(result.stdout)}
    mine = found[f"{stage}/{stem}"]
    assert mine["status"] == "passed"
    assert mine["derived"]["speedup"] > 0
    assert mine["traffic"][0]["source"] == "dispatch"
    listed = perflab("list", "implementations", cwd=copy).stdout
    assert f"{stage}/{stem}" in listed


def test_add_a_suite(copy, perflab):
    plan, run = follow("suites", "Add a suite", copy, perflab)
    assert "short rows" in plan.stdout
    assert run.stdout.count("passed") >= 8


def test_add_a_metric_and_a_chart(copy, perflab):
    measured = perflab("run", "case", "mhc/pre/eager", "-p", "T=8", "-p", "C=64", cwd=copy)
    assert measured.returncode == 0, measured.stderr
    listed, shown = follow("dashboards", "Add a metric", copy, perflab)
    assert "shared_bytes" in listed.stdout
    assert "shared_bytes" in shown.stdout.splitlines()[0]
    charts, _ = follow("dashboards", "Add a chart", copy, perflab)
    assert "launches" in charts.stdout


@pytest.mark.parametrize("folder", ["kernels", "suites", "results", "dashboards", "perflab", "tests", "benchmarks"])
def test_every_folder_says_what_it_is_and_how_to_add_one(folder):
    text = (ROOT / folder / "README.md").read_text()
    assert text.startswith(f"# {folder}\n")
    assert re.search(r"^## (Add|Keep) an? ", text, re.MULTILINE)


def test_add_a_machine(tmp_path, perflab):
    section = (ROOT / "perflab" / "README.md").read_text().split("## Add a machine\n")[1]
    (tmp_path / "mine.toml").write_text(section.split("```toml\n")[1].split("```")[0])
    result = perflab("overhead", "--machine", str(tmp_path / "mine.toml"), cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert "27b on mine" in result.stdout and "mine: measured, benchmarks/h200.sh" in result.stdout


#: Sites that read the mean of all streams and write to each alike: what the recipe's first two places become.
AVERAGED = {
    "model/decoder.py": [
        ('RESIDUALS = ("residual",', 'RESIDUALS = ("averaged", "residual",'),
        (
            "    return Plain(layers, C, design.recompute)",
            '    if design.residual == "averaged":\n        return Averaged(layers, C, recompute=False)\n'
            "    return Plain(layers, C, design.recompute)",
        ),
        (
            "class Unconstrained(Plain)",
            'class Averaged(Plain):\n    """Sites x <- x + F(norm(mean of x))."""\n\n'
            '    kit = Kit("model.averaged", "model.averaged", "model.plain")\n\n\nclass Unconstrained(Plain)',
        ),
    ],
    "step/reference.py": [
        ("SITES = {", 'SITES = {"averaged": lambda x, F, w, index: x + F(x.mean(1))[:, None], '),
    ],
}
KIT = '''"""The mean of all streams is read, and what F makes of it is added to each."""


def read_through(x, phi, a, b, eps, iterations):
    """x, its mean over streams, and no coefficients."""
    none = x.new_empty(0)
    return x, x.mean(1), none, none, none


def post_res(x, f, h_post, h_res):
    """x + f."""
    return x + f[:, None]
'''


def test_add_a_residual_design_to_the_training_step(copy, perflab):
    mhc = copy / "kernels" / "mhc"
    for path, changes in AVERAGED.items():
        text = (mhc / path).read_text()
        for was, now in changes:
            assert text.count(was) == 1, was
            text = text.replace(was, now)
        (mhc / path).write_text(text)
    (mhc / "model" / "averaged.py").write_text(KIT)
    hc = (mhc / "step" / "hc.py").read_text()
    (mhc / "step" / "averaged.py").write_text(hc.replace('"hc"', '"averaged"'))
    sizes = "-p", "layers=2", "-p", "S=32", "-p", "B=1"
    result = perflab("run", "case", "mhc/step/averaged", *sizes, "--dtype", "fp32", "--format", "json", cwd=copy)
    assert result.returncode == 0, result.stderr
    statuses = {one["implementation"]: one["status"] for one in json.loads(result.stdout)}
    assert statuses == {"mhc/step/averaged": "passed", "mhc/step/residual": "passed"}


def test_a_step_in_a_file_elsewhere_reaches_the_decoder_by_its_name(tmp_path, perflab):
    (tmp_path / "mine.py").write_text(
        '"""Hyper-connections again."""\n\nimport perflab\n\nREQUIRES = ("torch",)\nCONVENTION = {"residual": "hc"}\n'
        'training = perflab.load("mhc/model/training")\n\n\ndef step(shape, dtype, device, seed):\n'
        '    """A decoder in training."""\n'
        '    return training.Training(shape, training.Design("hc", "eager"), dtype, device, seed)\n'
    )
    options = "-p", "layers=2", "-p", "S=32", "-p", "B=1", "--dtype", "fp32", "--format", "json"
    result = perflab("run", "case", "mhc/step/mine", *options, "--kernels", str(tmp_path / "mine.py"), cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert {one["status"] for one in json.loads(result.stdout)} == {"passed"}
