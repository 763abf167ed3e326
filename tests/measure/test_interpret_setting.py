"""A suite may leave the bytes of interpreted kernels uncounted; the record says so, and keeps all else."""

import shutil

from tests.conftest import ROOT

SUITE = """question = "What is kept?"
[[group]]
stages = ["mhc/pre"]
implementations = ["eager", "triton_column_tiles"]
shape = { T = 4, n = 4, C = 64 }
passes = ["forward_backward"]
[check]
interpret = false
draws = 1
[timing]
max_seconds = 0.05
"""


def test_uncounted_bytes_are_a_remark_and_memory_is_measured(tmp_path, perflab, records):
    shutil.copytree(ROOT / "kernels", tmp_path / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("suites", "dashboards"):
        (tmp_path / folder).mkdir()
    (tmp_path / "suites" / "kept.toml").write_text(SUITE)
    result = perflab("run", "suite", "kept", "--device", "cpu", cwd=tmp_path, timeout=550)
    assert result.returncode == 0, result.stderr
    found = records(tmp_path)
    interpreted, eager = found["triton_column_tiles"], found["eager"]
    assert (interpreted["status"], interpreted["execution"], interpreted["traffic"]) == ("passed", "interpreted", [])
    assert "bytes not counted: the suite says interpret = false" in interpreted["warnings"]
    assert interpreted["memory"]["peak_bytes"] > 0
    assert eager["traffic"] and not any("not counted" in warning for warning in eager["warnings"])
