"""What several tests share: perflab as a user runs it, and workspaces of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def perflab(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `perflab ARGUMENTS` in a folder (default: an empty one) and give the finished process."""

    def run(*arguments: str, cwd: Path = tmp_path, timeout: float = 300, **environment: str):
        return subprocess.run(
            [sys.executable, "-m", "perflab", *arguments],
            cwd=cwd,
            env={**os.environ, "COLUMNS": "200", **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def workspace(tmp_path: Path, perflab) -> Path:
    """A new workspace with the example stage, whose suite is small and quick."""
    folder = tmp_path / "ws"
    result = perflab("init", str(folder))
    assert result.returncode == 0, result.stderr
    (folder / "suites" / "quick.toml").write_text(
        'question = "Does it work?"\ntimeout_s = 60\n'
        "[timing]\nmax_seconds = 0.05\n"
        '[[group]]\nstages = ["example/axpy"]\nshape = { N = 1000 }\ndtypes = ["fp32"]\n'
    )
    return folder


@pytest.fixture
def records() -> Callable[[Path], dict[str, dict]]:
    """Read the newest run of a workspace: records by implementation."""

    def read(workspace: Path) -> dict[str, dict]:
        newest = sorted((workspace / "results" / "local").iterdir())[-1]
        lines = (newest / "records.jsonl").read_text().splitlines()
        return {record["implementation"].rpartition("/")[2]: record for record in map(json.loads, lines)}

    return read
