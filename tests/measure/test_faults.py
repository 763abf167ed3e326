"""Kernels that break in every way a kernel can: each costs its own case and nothing else."""

import pytest

FAULTS = {
    "raises_on_import": ("raise RuntimeError('no such device')\ndef axpy(x, y, alpha): return y\n", "failed", "import_error"),
    "raises_when_called": ("def axpy(x, y, alpha): raise RuntimeError('bad launch')\n", "failed", "exception"),
    "returns_none": ("def axpy(x, y, alpha): return None\n", "wrong", "wrong_output"),
    "wrong_shape": ("def axpy(x, y, alpha): return (alpha * x + y)[:-1]\n", "wrong", "wrong_shape"),
    "wrong_dtype": ("def axpy(x, y, alpha): return (alpha * x + y).double()\n", "wrong", "wrong_dtype"),
    "writes_nan": ("def axpy(x, y, alpha): return (alpha * x + y) * float('nan')\n", "wrong", "not_finite"),
    "unwritten_tail": (
        "import torch\ndef axpy(x, y, alpha):\n    z = torch.empty_like(x)\n    z[:-1] = alpha * x[:-1] + y[:-1]\n    return z\n",
        "wrong", "not_finite",
    ),
    "changes_inputs": ("def axpy(x, y, alpha): return y.add_(x, alpha=alpha)\n", "wrong", "inputs_changed"),
    "wrong_value": ("def axpy(x, y, alpha): return alpha * x - y\n", "wrong", "wrong_value"),
    "hangs": ("import time\ndef axpy(x, y, alpha):\n    while True: time.sleep(1)\n", "failed", "timeout"),
    "segfault": ("import ctypes\ndef axpy(x, y, alpha): return ctypes.string_at(0)\n", "failed", "crash"),
    "killed": (
        "import os, signal\ndef axpy(x, y, alpha): os.kill(os.getpid(), signal.SIGKILL)\n", "failed", "crash",
    ),
    "exits": ("import os\ndef axpy(x, y, alpha): os._exit(7)\n", "failed", "crash"),
    "eats_memory": (
        "import torch\nkept = []\ndef axpy(x, y, alpha):\n    while True: kept.append(torch.ones(2**24))\n",
        "failed", "out_of_memory",
    ),
    "asks_too_much": ("import torch\ndef axpy(x, y, alpha): return torch.empty(2**48)\n", "failed", "out_of_memory"),
    "syntax_error": ("def axpy(x, y, alpha) return y\n", "failed", "broken_file"),
    "other_function": ("def saxpy(x, y, alpha): return y\n", "failed", "broken_file"),
    "needs_a_package": ("REQUIRES = ('no_such_package',)\ndef axpy(x, y, alpha): return y\n", "skipped", "missing_toolkit"),
    "declines": (
        "from perflab import Unsupported\ndef axpy(x, y, alpha): raise Unsupported('N must be a multiple of 7')\n",
        "skipped", "unsupported_shape",
    ),
}  # fmt: skip


@pytest.fixture
def faulty(workspace):
    for name, (source, _, _) in FAULTS.items():
        (workspace / "kernels" / "example" / "axpy" / f"{name}.py").write_text(f'"""{name}."""\n{source}')
    suite = workspace / "suites" / "quick.toml"
    suite.write_text(suite.read_text().replace("timeout_s = 60", "timeout_s = 15\nmemory_gb = 1.5"))
    return workspace


def test_every_fault_is_recorded_with_its_reason_and_the_rest_is_measured(faulty, perflab, records):
    result = perflab("run", "suite", cwd=faulty)
    assert result.returncode == 1, result.stderr
    found = records(faulty)
    outcomes = {name: (record["status"], (record["reason"] or {}).get("code")) for name, record in found.items()}
    assert outcomes == {name: (status, code) for name, (_, status, code) in FAULTS.items()} | {
        "eager": ("passed", None)
    }
    assert found["eager"]["latency"]["samples_s"]
    for name, record in found.items():
        if name != "eager":
            assert record["reason"]["text"]
            assert not (record["latency"] or record["accuracy"] or record["traffic"])


def test_reasons_name_the_place_and_the_signal(faulty, perflab, records):
    perflab("run", "suite", "--only", "raises_when_called", "--only", "segfault", "--only", "declines", cwd=faulty)
    found = records(faulty)
    assert "bad launch (raises_when_called.py, line 2)" in found["raises_when_called"]["reason"]["text"]
    assert "SIGSEGV" in found["segfault"]["reason"]["text"]
    assert found["declines"]["reason"]["text"] == "N must be a multiple of 7"


def test_nothing_measured_is_exit_code_3(faulty, perflab):
    assert perflab("run", "suite", "--only", "needs_a_package", cwd=faulty).returncode == 3
