"""The README's numbers come from a committed run, its commands and links exist, its example works."""

import json
import re
import statistics

import pytest

from perflab import machines, store
from perflab.analyse import steps
from perflab.catalogue import load_module
from perflab.present import units
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()


RUNS = {name: run for run, name in re.findall(r"results/(\d{8}-\d{6}-(\w+)-[0-9a-f]{4})", README)}


@pytest.mark.parametrize(
    ("name", "start", "end"),
    [
        ("quick", "## What it prints", "How to read the columns"),
        ("backward", "## Training", "`saved` is what"),
        ("step", "## The whole step", "`rel. error` is that"),
        ("pipeline", "simulator that plays them", "The simulator, which sees"),
    ],
)
def test_every_table_row_is_printed_by_the_committed_run(perflab, name, start, end):
    result = perflab("show", RUNS[name], "--format", "markdown", cwd=ROOT)
    assert result.returncode == 0, result.stderr
    printed = set(result.stdout.splitlines())
    rows = [line for line in README.split(start)[1].split(end)[0].splitlines() if line.startswith(("|", "- "))]
    assert len(rows) > 5
    for row in rows:
        assert row in printed


def test_every_row_of_the_projection_is_what_its_command_prints(perflab):
    (command,) = re.findall(r"`perflab (overhead .*--format markdown)`", README)
    result = perflab(*command.split(), cwd=ROOT)
    assert result.returncode == 0, result.stderr
    printed = set(result.stdout.splitlines())
    section = README.split("--format markdown`:")[1].split("Nothing in it was fitted")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert len(rows) == 6
    assert set(rows) <= printed
    beliefs = README.split("These assumptions decide")[1].split("The faster the rest")[0]
    decisive = re.findall(r"^\| [^|]*[a-z][^|]* \| ([\d.]+) \| ([^|]+) \|$", beliefs, re.MULTILINE)
    told = [cells for line in printed if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 4]
    assert len(decisive) == 4
    for now, needed in decisive:
        assert any(cells[1:3] == [now, needed] for cells in told), needed


def test_the_overheads_of_other_machines_and_assumptions_are_what_the_command_prints(perflab):
    text = " ".join(README.split())
    (h100, b200) = re.search(r"H100 and H800 give ([\d.]+%), B200 ([\d.]+%)", text).groups()
    (forward_alone,) = re.search(r"worth another point: ([\d.]+%) if it is not", text).groups()
    for machine, options, told in (
        ("h100", (), h100), ("h800", (), h100), ("b200", (), b200),
        ("h200", ("--assume", "hidden_write_backward=0"), forward_alone),
    ):  # fmt: skip
        given = ("--model", "27b", "--machine", machine, "--mfu", "0.4", "--format", "markdown", *options)
        lines = perflab("overhead", *given, cwd=ROOT).stdout.splitlines()
        (row,) = [line for line in lines if line.startswith("| fused + recompute + overlap |")]
        assert row.endswith(f"| {told} |")


def test_the_projection_falls_short_of_the_committed_steps_by_about_half():
    assert "falls short of mHC's extra seconds by about half" in " ".join(README.split())
    run = store.find(ROOT / "results", RUNS["step"])
    overhead = load_module(ROOT / "kernels" / "mhc" / "overhead.py")
    projection = overhead.project("tiny", machines.of_run(run.about()), {})
    errors = [one.error for one in overhead.held(projection, steps.timed_steps(run.records(), "tiny"))]
    assert errors and all(-0.6 < error < -0.4 for error in errors)


def test_how_far_the_simulator_is_off_is_what_the_committed_run_shows(perflab):
    found = json.loads(perflab("show", RUNS["pipeline"], "--format", "json", cwd=ROOT).stdout)
    off = {
        (r["implementation"].split("/")[-1], r["shape"]["p"]): abs(
            r["step"]["predicted_s"] / statistics.median(r["latency"]["samples_s"]) - 1
        )
        for r in found
    }
    text = " ".join(README.split())
    two, four = re.search(r"within (\d+)% with a process for each processor, within (\d+)% for mHC", text).groups()
    (plain,) = re.search(r"and (\d+)% too quick for the plain step", text).groups()
    assert max(share for (_, p), share in off.items() if p == 2) < int(two) / 100
    assert max(share for (name, p), share in off.items() if p == 4 and name.startswith("mhc")) < int(four) / 100
    assert round(100 * off["residual_1f1b", 4]) == int(plain)


def records(perflab, name, implementation):
    result = perflab("show", RUNS[name], "--format", "json", cwd=ROOT)
    assert result.returncode == 0, result.stderr
    return [r for r in json.loads(result.stdout) if r["implementation"] == implementation and r["status"] == "passed"]


def test_the_table_of_recomputation_is_the_committed_runs(perflab):
    found = sorted(records(perflab, "recompute", "mhc/stack/eager"), key=lambda r: r["shape"]["L_r"])
    blocks = [r for r in found if r["shape"]["L_r"]]
    for record in found:
        own, L_r = record["derived"], record["shape"]["L_r"]
        listed = [own["table3_bytes"], own["saved_bytes"], own["beyond_table3"], own["eq20_bytes"], own["peak_bytes"]]
        cells = [units.value(value, "B") or "-" for value in listed]
        assert f"| {L_r or 'none'} | " + " | ".join(cells) + " |" in README
    least = {key: min(blocks, key=lambda r: r["derived"][key])["shape"]["L_r"] for key in ("eq20_bytes", "peak_bytes")}
    said = f"equation 20 is least at L_r = {least['eq20_bytes']}, the measured peak at L_r = {least['peak_bytes']}"
    assert said in " ".join(README.split())


def test_the_table_of_stability_is_the_committed_runs(perflab):
    rows = {}
    for record in records(perflab, "stability", "mhc/gain/eager"):
        rows.setdefault(record["shape"]["s"], {})[record["shape"]["t_max"]] = record["accuracy"]["observed"]
    for s, by_iterations in rows.items():
        cells = [f"{by_iterations[t_max]['gain_backward']:.3g}" for t_max in sorted(by_iterations)]
        (hc,) = {
            f"{r['accuracy']['observed']['gain_backward']:.3g}"
            for r in records(perflab, "stability", "mhc/gain_hc/eager")
            if r["shape"]["s"] == s
        }
        assert f"| {s} | " + " | ".join([*cells, hc]) + " |" in README


def test_the_committed_run_was_measured_on_a_clean_tree():
    for about in (ROOT / "results").glob("2*/run.json"):
        run = json.loads(about.read_text())
        assert run["commit"]["dirty"] is False
        assert run["interrupted"] is False


def test_links_lead_to_files():
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", README):
        assert (ROOT / target).is_file(), target


def test_every_command_exists_and_every_command_is_named():
    from perflab.cli import app, dashboard_app, run_app

    named = {c.name or c.callback.__name__ for c in app.registered_commands}
    groups = {"run": run_app, "dashboard": dashboard_app}
    section = README.split("## Commands")[1].split("```")[1]
    written = {line.split()[1] for line in section.strip().splitlines()}
    assert written == named | set(groups)
    for group, commands in groups.items():
        for command in commands.registered_commands:
            name = command.name or command.callback.__name__
            assert re.search(rf"perflab {group}.*\b{name}\b", section)


def test_the_example_is_measured(perflab, tmp_path):
    code = README.split("```python\n# eager_matmul.py\n")[1].split("```")[0]
    (tmp_path / "eager_matmul.py").write_text(code)
    (command,) = re.findall(r"^\$ \.venv/bin/perflab (.*--kernels.*)$", README, re.MULTILINE)
    result = perflab(*command.split(), "--workspace", str(ROOT), "--results", str(tmp_path / "r"), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert re.search(r"eager_matmul +passed", result.stdout)
