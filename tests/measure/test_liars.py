"""Kernels that are right only while they are looked at: none of them may pass."""

import pytest

RIGHT = "alpha * x + y"
LIARS = {
    "right_on_odd_calls": f"calls = []\ndef axpy(x, y, alpha):\n    calls.append(0)\n    return {RIGHT} if len(calls) % 2 else x * 7\n",
    "adds_up_over_calls": f"calls = []\ndef axpy(x, y, alpha):\n    calls.append(0)\n    return ({RIGHT}) * len(calls)\n",
    "zeroes_inputs_on_the_second_call": (
        "import torch\ncalls = []\ndef axpy(x, y, alpha):\n    calls.append(0)\n"
        f"    if len(calls) > 1:\n        x.zero_(); y.zero_()\n    return {RIGHT}\n"
    ),
    "remembers_by_address": (
        "known = {}\ndef axpy(x, y, alpha):\n    key = x.data_ptr()\n"
        f"    if key not in known:\n        known[key] = ({RIGHT}, x.clone())\n    return known[key][0]\n"
    ),
    "tires_after_five_calls": f"calls = []\ndef axpy(x, y, alpha):\n    calls.append(0)\n    return {RIGHT} if len(calls) < 6 else x.clone()\n",
    "looks_for_the_check": (
        "import torch\ndef axpy(x, y, alpha):\n"
        f"    return {RIGHT} if torch.get_deterministic_debug_mode() else x.clone()\n"
    ),
    "puts_off_its_work": (
        "import torch\nclass Lazy(torch.Tensor):\n    pass\n"
        f"def axpy(x, y, alpha): return ({RIGHT}).as_subclass(Lazy)\n"
    ),
    "claims_to_be_unsupported": "class Mine(Exception):\n    code = 'unsupported_shape'\ndef axpy(x, y, alpha): raise Mine('a bug')\n",
    "cannot_even_say_why": "class Mine(Exception):\n    def __str__(self): raise ValueError\ndef axpy(x, y, alpha): raise Mine\n",
    "forks": f"import os\ndef axpy(x, y, alpha):\n    os.fork()\n    return {RIGHT} - 1\n",
}  # fmt: skip


@pytest.fixture
def lying(workspace):
    for name, source in LIARS.items():
        (workspace / "kernels" / "example" / "axpy" / f"{name}.py").write_text(f'"""{name}."""\n{source}')
    return workspace


def test_no_liar_passes_and_the_honest_one_does(lying, perflab, records):
    result = perflab("run", "suite", cwd=lying)
    assert result.returncode == 1, result.stderr
    assert "Traceback" not in result.stderr
    found = records(lying)
    assert set(found) == {"eager", *LIARS}
    assert {name for name, record in found.items() if record["status"] == "passed"} == {"eager"}
    assert not any(record["status"] == "skipped" for record in found.values())
    for name in ("remembers_by_address", "tires_after_five_calls", "looks_for_the_check"):
        assert found[name]["status"] == "wrong"
        assert found[name]["latency"] is None


def test_bytes_moved_where_the_source_cannot_look_are_no_number(workspace, perflab, records):
    (workspace / "kernels" / "example" / "axpy" / "eager_numpy.py").write_text(
        '"""Past the dispatcher."""\nimport torch\n'
        "def axpy(x, y, alpha): return torch.from_numpy(x.numpy() * alpha + y.numpy())\n"
    )
    assert perflab("run", "suite", cwd=workspace).returncode == 0
    record = records(workspace)["eager_numpy"]
    assert record["status"] == "passed"
    assert record["traffic"] == []
    assert any("saw less than the fewest possible" in text for text in record["warnings"])


def test_what_a_kernel_starts_ends_with_its_worker(workspace, perflab):
    import psutil

    (workspace / "kernels" / "example" / "axpy" / "eager_parent.py").write_text(
        '"""Starts a sleeper."""\nimport subprocess\nsubprocess.Popen(["sleep", "4321"])\n'
        "def axpy(x, y, alpha): return alpha * x + y\n"
    )
    assert perflab("run", "suite", cwd=workspace).returncode == 0
    assert not [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "4321"]]


def test_an_empty_output_is_skipped_not_passed(workspace, perflab):
    result = perflab("run", "case", "example/axpy/eager", "-p", "N=0", cwd=workspace)
    assert result.returncode == 3
    assert "nothing to check" in result.stdout
