"""The whole thing: every stage and toolkit of this workspace through the real command, on small shapes."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from perflab.record import Record
from tests.conftest import ROOT

SUITE = """question = "Does every implementation pass?"
[timing]
max_seconds = 0.05
[check]
draws = 1
[[group]]
stages = ["mhc/project", "mhc/activate", "mhc/sinkhorn", "mhc/pre", "mhc/post_res", "mhc/residual"]
shape = { T = 5, n = 4, C = 264 }
dtypes = ["bf16", "fp32"]
[[group]]
stages = ["mhc/project", "mhc/activate", "mhc/sinkhorn", "mhc/pre", "mhc/post_res", "mhc/read", "mhc/site"]
implementations = ["eager", "triton_*", "tilelang_*"]
shape = { T = 5, n = 4, C = 264 }
dtypes = ["fp32"]
passes = ["backward"]
[[group]]
stages = ["mhc/recompute", "mhc/gain"]
implementations = ["eager", "triton_*", "tilelang_*"]
shape = { T = 5, n = 4, C = 264, L = 3, t_max = 20, s = 3 }
dtypes = ["fp32"]
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ws")
    for part in ("kernels", "dashboards"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "suites").mkdir()
    (folder / "suites" / "quick.toml").write_text(SUITE)
    command = [sys.executable, "-m", "perflab", "run", "suite", "--format", "json", "--device", "cpu"]
    # Not compiled_planes, which takes long to compile.
    names = ["*/eager", "*/compiled", "*/compiled_einsum", "*/triton_*", "*/tilelang_*"]
    only = [part for name in names for part in ("--only", name)]
    result = subprocess.run(
        [*command, *only], cwd=folder, env=os.environ, capture_output=True, text=True, timeout=1100, check=False
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_records_have_the_documented_schema(measured):
    for data in measured:
        Record.model_validate({key: value for key, value in data.items() if key != "derived"})


def test_every_stage_has_eager_compiled_and_triton_passed(measured):
    passed = {(r["stage"], r["toolkit"]) for r in measured if r["status"] == "passed"}
    for stage in ("project", "activate", "sinkhorn", "pre", "post_res"):
        assert {(f"mhc/{stage}", kit) for kit in ("eager", "compiled", "triton", "tilelang")} <= passed
    assert {("mhc/residual", kit) for kit in ("eager", "compiled")} <= passed


def test_every_stage_with_a_gradient_has_a_backward_in_eager_triton_and_tilelang(measured):
    passed = {(r["stage"], r["toolkit"]) for r in measured if (r["status"], r["pass"]) == ("passed", "backward")}
    for stage in ("project", "activate", "sinkhorn", "pre", "post_res", "read", "site"):
        assert {(f"mhc/{stage}", kit) for kit in ("eager", "triton", "tilelang")} <= passed


def test_memory_is_measured_for_every_case_and_saved_bytes_where_there_is_a_backward(measured):
    for record in measured:
        if record["status"] == "passed":
            assert record["memory"]["peak_bytes"] > 0 or record["stage"] == "mhc/residual"
            assert (record["memory"]["saved_bytes"] is None) == (record["pass"] == "forward")


def test_fused_kernels_keep_no_more_of_a_site_than_its_coefficients_and_what_f_gave(measured):
    T, n, C = 5, 4, 264
    (site,) = [r for r in measured if r["implementation"] == "mhc/site/triton_fused" and r["pass"] == "backward"]
    coefficients = 4 * (n * n + 2 * n + 1 + n + n + n * n)
    assert site["memory"]["saved_bytes"] == T * (2 * C * 4 + coefficients)
    assert site["derived"]["launches"] <= 8


def test_what_did_not_pass_is_tilelang_in_bf16_and_says_why(measured):
    for record in measured:
        if record["status"] != "passed":
            assert (record["toolkit"], record["dtype"], record["status"]) == ("tilelang", "bf16", "skipped")
            assert record["reason"] == {"code": "not_expressible", "text": "TileLang's C target has no bf16 type"}


def test_each_toolkit_has_its_own_source_of_bytes_and_only_native_cases_have_a_latency(measured):
    sources = {"eager": ["dispatch"], "compiled": ["compiler"], "triton": ["interpreted"], "tilelang": []}
    for record in measured:
        if record["status"] == "passed":
            assert [entry["source"] for entry in record["traffic"]] == sources[record["toolkit"]]
            assert (record["latency"] is not None) == (record["execution"] == "native")


def test_every_kernel_is_compiled_for_hopper_without_spills(measured):
    for record in measured:
        if record["toolkit"] == "triton" or (record["toolkit"] == "tilelang" and shutil.which("nvcc")):
            assert record["compile"]["target"] == "sm_90a"
            assert record["compile"]["kernels"]
            assert all(kernel["spill_bytes"] == 0 for kernel in record["compile"]["kernels"])


def test_no_traffic_is_below_the_fewest_bytes(measured):
    for record in measured:
        if record["traffic"]:
            assert record["derived"]["amplification"] >= 0.999
