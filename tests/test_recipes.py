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
