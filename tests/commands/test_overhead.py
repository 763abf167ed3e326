"""`perflab overhead` as a user runs it: what it prints, what it refuses, and that it needs no heavy library."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest

from tests.conftest import ROOT

CALL = ("overhead", "--model", "27b", "--machine", "h200", "--mfu", "0.4")


def test_the_table_says_what_is_projected_counted_quoted_and_assumed(perflab) -> None:
    result = perflab(*CALL, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    for word in ("Projected: extra seconds", "Counted, one site", "quoted, NVIDIA H200 datasheet", "assumed: ", "given",
                 "What one would have to believe for 6.7%", "By Table 3", "fused + recompute + overlap"):  # fmt: skip
        assert word in result.stdout
    assert "measured" not in result.stdout.replace("measures", "")


def test_json_has_the_same_numbers_in_stored_units(perflab) -> None:
    data = json.loads(perflab(*CALL, "--format", "json", cwd=ROOT).stdout)
    assert data["kind"] == "projected" and data["assumptions"]["utilisation"] == {
        "value": 0.4, "unit": "1", "source": "given"}  # fmt: skip
    for one in data["variants"].values():
        assert one["overhead"] == pytest.approx(sum(one["seconds"].values()) / data["baseline_s"])
    assert set(data["claim_holds_at"]) == {row["assumption"] for row in data["sensitivity"]}
    assert all((ROOT / "results" / run / "run.json").is_file() for run in data["runs"])


def test_markdown_has_a_table_for_each_section(perflab) -> None:
    text = perflab(*CALL, "--format", "markdown", cwd=ROOT).stdout
    assert text.count("### ") == 6
    for line in text.splitlines():
        assert not line.startswith("| ---") or line.endswith("|")


def test_options_and_assumptions_are_the_same_thing(perflab) -> None:
    options = "--achieved", "0.7", "--micro-batch", "2", "--pipeline", "10", "--peak", "9e14"
    assumed = [f"--assume={one}" for one in ("achieved=0.7", "micro_batch=2", "pipeline=10", "peak=9e14")]
    one, two = (perflab("overhead", *given, "--format", "json", cwd=ROOT) for given in (options, assumed))
    assert one.returncode == 0 and one.stdout == two.stdout


def test_the_link_between_stages_can_be_nvlink(perflab) -> None:
    fast, slow = (
        json.loads(perflab("overhead", "--link", link, "--format", "json", cwd=ROOT).stdout)
        for link in ("nvlink", "network")
    )
    ratio = fast["variants"]["fused"]["seconds"]["messages"] / slow["variants"]["fused"]["seconds"]["messages"]
    assert ratio == pytest.approx(50e9 / 450e9)


@pytest.mark.parametrize(
    "arguments, told",
    [
        (("--model", "27B"), "unknown model '27B': did you mean 27b"),
        (("--machine", "h2000"), "unknown machine 'h2000': did you mean h200"),
        (("--pipeline", "8"), "8 stages do not divide 30 layers; [1, 2, 3, 5, 6, 10, 15, 30] do"),
        (("--mfu", "0"), "utilisation: expected more than 0"),
        (("--mfu", "1.5"), "utilisation: expected a share of at most 1"),
        (("--micro-batch", "-1"), "micro_batch: expected more than 0"),
        (("--assume", "speed=1"), "unknown assumption 'speed'"),
        (("--peak", "0"), "peak: expected a number above 0, got 0"),
        (("--assume", "bandwidth=nan"), "bandwidth: expected a number above 0, got nan"),
        (("--assume", "exposed"), "expected NAME=NUMBER"),
        (("--mfu", "0.4", "--assume", "utilisation=0.5"), "given twice"),
        (("--format", "cvs"), "unknown format 'cvs'"),
        (("--link", "nvlnk"), "unknown link 'nvlnk': did you mean nvlink"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(arguments, told, perflab) -> None:
    result = perflab("overhead", *arguments, cwd=ROOT)
    assert result.returncode == 2 and told in result.stderr
    assert result.stderr.count("\n") == 1 and not result.stdout


def test_a_workspace_without_the_subject_says_so(workspace, perflab) -> None:
    result = perflab("overhead", cwd=workspace)
    assert result.returncode == 2 and "expected one subject with overhead.py, found 0" in result.stderr


def test_it_imports_no_tensor_library_no_pandas_and_no_plotly() -> None:
    code = (
        "import sys; from perflab.cli import _main; code = _main(['overhead']); "
        "heavy = {'torch', 'triton', 'tilelang', 'pandas', 'plotly', 'numpy'} & set(sys.modules); "
        "print(code, sorted(heavy), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "0 []"


def test_it_takes_less_than_a_second(perflab) -> None:
    """Of the processor, so that a busy machine makes no difference."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert perflab(*CALL, cwd=ROOT).returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1
