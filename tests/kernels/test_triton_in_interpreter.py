"""Triton's kernels against fp64, in the interpreter: each file of `interpreted/` in a process of its own.

A kernel is interpreted or compiled for the whole life of a process, so these checks cannot share one with the others.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = sorted(Path(__file__).with_name("interpreted").glob("test_*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_interpreted(file):
    command = [sys.executable, "-m", "pytest", "-q", "--durations=3", "-p", "no:cacheprovider", str(file)]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command, cwd=root, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
