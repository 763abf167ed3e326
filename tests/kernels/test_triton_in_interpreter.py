"""Triton's kernels against fp64, in the interpreter: each file of `interpreted/` in a process of its own.

A kernel is interpreted or compiled for the whole life of a process, so these checks cannot share one with the others.
As many files run side by side as there are processors; interpreting takes one.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

FILES = sorted(Path(__file__).with_name("interpreted").glob("test_*.py"))


@pytest.fixture(scope="module")
def running(request):
    """Every file that was asked for, as what its process will have ended with."""
    asked = [one.callspec.params["file"] for one in request.session.items if one.path == Path(__file__)]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        yield {file: threads.submit(interpret, file) for file in asked}


def interpret(file):
    """The finished process of a file's tests."""
    command = [sys.executable, "-m", "pytest", "-q", "--durations=3", "-p", "no:cacheprovider", str(file)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    root = Path(__file__).parents[2]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_interpreted(file, running):
    done = running[file].result()
    assert done.returncode == 0, done.stdout + done.stderr
