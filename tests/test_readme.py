"""The README's numbers come from a committed run, its commands and links exist, its example works."""

import json
import re

from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()


def test_every_table_row_is_printed_by_the_committed_run(perflab):
    (run,) = set(re.findall(r"results/(\d{8}-\d{6}-\w+-[0-9a-f]{4})", README))
    result = perflab("show", run, "--format", "markdown", cwd=ROOT)
    assert result.returncode == 0, result.stderr
    printed = set(result.stdout.splitlines())
    intro = README.split("## What it prints")[1].split("How to read the columns")[0]
    rows = [line for line in intro.splitlines() if line.startswith(("|", "- "))]
    assert len(rows) > 10
    for row in rows:
        assert row in printed


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
