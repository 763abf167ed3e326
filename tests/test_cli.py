"""The command line as a user meets it: exit codes, one-line errors, nothing heavy imported for light commands."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "suite", "quik"], "did you mean quick"),
        (["plan", "stage"], "did you mean stages"),
        (["run", "case", "mhc/pre/eagr"], "did you mean mhc/pre/eager"),
        (["run", "case", "mhc/pr/eager"], "did you mean"),
        (["run", "suite", "--only", "mhc/pre/eagr"], "did you mean mhc/pre/eager"),
        (["run", "suite", "--device", "gpu"], "unknown device 'gpu'"),
        (["run", "suite", "--format", "jsn"], "did you mean json"),
        (["run", "suite", "--kernels", "gone.py"], "no such file"),
        (["run", "case", "mhc/pre/eager", "-p", "T=many"], "expected DIM=SIZE"),
        (["run", "case", "mhc/pre/eager", "-p", "K=3"], "has the dims T, n, C"),
        (["run", "case", "mhc/pre/eager", "--dtype", "int8"], "dtypes"),
        (["run", "case", "mhc/pre/eager", "--pass", "sideways"], "passes"),
        (["run", "suite", "--resume", "gone"], "unknown run"),
        (["run", "suite", "--ony", "x"], "--only"),
        (["rn"], "run"),
        (["list", "suits"], "did you mean suites"),
        (["show", "gone"], "unknown run"),
        (["show"], "no runs"),
        (["keep"], "no runs"),
        (["show", "--workspace", "gone"], "is no workspace"),
        (["init", "."], "not an empty folder"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(perflab, tmp_path, arguments, told):
    (tmp_path / "something").touch()
    results = (
        ["--results", str(tmp_path / "results")] if arguments[0] in ("show", "keep") or "--resume" in arguments else []
    )
    result = perflab(*arguments, *results)
    assert result.returncode == 2
    assert told in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not result.stdout


@pytest.mark.parametrize(
    "arguments", [["--help"], ["plan", "stages"], ["list", "implementations"], ["run", "suite", "--help"]]
)
def test_light_commands_import_no_tensor_library(arguments):
    code = (
        "import sys\nfrom perflab.cli import _main\n"
        f"code = _main({arguments!r})\n"
        "heavy = {'torch', 'triton', 'tilelang', 'scipy', 'pandas', 'plotly'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else code)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout


def test_results_go_to_stdout_and_the_rest_to_stderr(workspace, perflab):
    result = perflab("run", "suite", "--format", "json", cwd=workspace)
    assert result.returncode == 0, result.stderr
    (record,) = json.loads(result.stdout)
    assert record["status"] == "passed"
    assert record["derived"]["latency_s"] > 0
    assert "example/axpy/eager: passed" in result.stderr
    assert perflab("run", "suite", "--quiet", cwd=workspace).stderr == ""


@pytest.mark.parametrize("format_", ["table", "json", "csv", "markdown"])
def test_show_prints_every_format(workspace, perflab, format_):
    assert perflab("run", "suite", "--quiet", cwd=workspace).returncode == 0
    result = perflab("show", "--format", format_, cwd=workspace)
    assert result.returncode == 0, result.stderr
    assert "eager" in result.stdout


def test_no_colour_unless_a_terminal_asks_for_it(workspace, perflab):
    assert "\x1b[" not in perflab("run", "suite", cwd=workspace).stdout


@pytest.fixture
def slow(workspace):
    """Ten cases of which each takes some time."""
    (workspace / "suites" / "quick.toml").write_text(
        'question = "Does it stop?"\n[timing]\nmax_seconds = 0.6\nmax_samples = 100000\nhalf_width = 1e-9\n'
        '[[group]]\nstages = ["example/axpy"]\nshape = { N = [1,2,3,4,5,6,7,8,9,10] }\ndtypes = ["fp32"]\n'
    )
    return workspace


def start(workspace):
    return subprocess.Popen(
        [sys.executable, "-m", "perflab", "run", "suite"],
        cwd=workspace, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def newest(workspace):
    return sorted((workspace / "results" / "local").iterdir())[-1]


def wait_for_records(workspace, count, deadline=120):
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        files = list(workspace.glob("results/local/*/records.jsonl"))
        if files and len(files[-1].read_text().splitlines()) >= count:
            return
        time.sleep(0.05)
    raise AssertionError("no records came")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_its_records_and_can_be_finished(slow, perflab, number):
    process = start(slow)
    wait_for_records(slow, 2)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    run = newest(slow)
    before = (run / "records.jsonl").read_text()
    assert 2 <= len(before.splitlines()) < 10
    assert json.loads((run / "run.json").read_text())["interrupted"] is True
    result = perflab("run", "suite", "--resume", run.name, cwd=slow)
    assert result.returncode == 0, result.stderr
    after = (run / "records.jsonl").read_text()
    assert after.startswith(before)
    records = [json.loads(line) for line in after.splitlines()]
    assert sorted(record["shape"]["N"] for record in records) == list(range(1, 11))
    assert json.loads((run / "run.json").read_text())["interrupted"] is False
    assert "nothing to resume" in perflab("run", "suite", "--resume", run.name, cwd=slow).stderr


def test_no_worker_outlives_a_killed_run(slow):
    import psutil

    process = start(slow)
    wait_for_records(slow, 1)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    lines = (newest(slow) / "records.jsonl").read_text()
    assert lines.endswith("\n")
    for line in lines.splitlines():
        json.loads(line)


def test_two_runs_at_once_do_not_disturb_each_other(workspace):
    processes = [start(workspace) for _ in range(2)]
    for process in processes:
        _, stderr = process.communicate(timeout=200)
        assert process.returncode == 0, stderr
    runs = list((workspace / "results" / "local").iterdir())
    assert len(runs) == 2
    for run in runs:
        (record,) = map(json.loads, (run / "records.jsonl").read_text().splitlines())
        assert record["run_id"] == run.name


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize("state", ["no_git", "no_repository", "no_commit", "clean", "dirty", "detached"])
def test_every_state_of_git_is_fine(workspace, perflab, state):
    environment = {}
    if state == "no_git":
        environment["PATH"] = "/nonexistent"
    elif state != "no_repository":
        git(workspace, "init")
        if state != "no_commit":
            git(workspace, "add", ".")
            git(workspace, "commit", "-m", "first")
        if state == "dirty":
            (workspace / "README.md").write_text("changed")
        if state == "detached":
            git(workspace, "checkout", "--detach")
    result = perflab("run", "suite", cwd=workspace, **environment)
    assert result.returncode == 0, result.stderr
    commit = json.loads((newest(workspace) / "run.json").read_text())["commit"]
    if state in ("clean", "dirty", "detached"):
        assert len(commit["id"]) == 40
        assert commit["dirty"] is (state == "dirty")
    else:
        assert commit is None


def test_results_that_cannot_be_written_are_told_before_measuring(workspace, perflab):
    (workspace / "blocked").write_text("a file")
    result = perflab("run", "suite", "--results", "blocked", cwd=workspace)
    assert result.returncode == 2
    assert "cannot be written" in result.stderr
    assert "passed" not in result.stderr


def test_implementations_with_odd_names_are_measured(workspace, perflab, records):
    folder = workspace / "kernels" / "example" / "axpy"
    odd = ["with space", "ünïcode", "dot.ted", "[bold]", "y" * 240]
    for name in odd:
        (folder / f"{name}.py").write_text("def axpy(x, y, alpha): return alpha * x + y\n")
    result = perflab("run", "suite", cwd=workspace)
    assert result.returncode == 0, result.stderr
    assert set(records(workspace)) == {"eager", *odd}
    for name in odd[:-1]:
        assert name in result.stdout


def test_a_file_of_ones_own_is_measured_beside_the_others(workspace, perflab, tmp_path):
    mine = tmp_path / "mine" / "eager_mine.py"
    mine.parent.mkdir()
    mine.write_text('"""Mine."""\ndef axpy(x, y, alpha): return y + alpha * x\n')
    result = perflab("run", "suite", "--kernels", str(mine), "--format", "json", cwd=workspace)
    assert result.returncode == 0, result.stderr
    names = {record["implementation"] for record in json.loads(result.stdout)}
    assert names == {"example/axpy/eager", "example/axpy/eager_mine"}
    case = perflab(
        "run",
        "case",
        "example/axpy/eager_mine",
        "-p",
        "N=77",
        "--kernels",
        str(mine),
        "--format",
        "json",
        cwd=workspace,
    )
    assert {record["shape"]["N"] for record in json.loads(case.stdout)} == {77}


def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -m perflab list implementations | head -1"
    result = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, env=os.environ, check=False
    )
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("path", "text", "arguments", "told"),
    [
        ("kernels/example/axpy/odd.py", "REQUIRES = FOO\ndef axpy(x, y, alpha): return y\n", ["plan"], "REQUIRES"),
        ("kernels/example/axpy/stage.py", "raise SystemExit(0)\n", ["plan"], "stage.py"),
        (
            "kernels/example/axpy/stage.py",
            "from perflab import Tensor, Stage\nSTAGE = Stage(None, {}, {}, {}, '')\n",
            ["plan"],
            "dims",
        ),
        (
            "dashboards/metrics/bad.py",
            '"""Bad."""\nUNIT = KIND = BETTER = "1"\ndef bad(record, context): return 1 / 0\n',
            ["show"],
            "bad",
        ),
    ],
)
def test_broken_files_of_a_workspace_are_one_line(workspace, perflab, path, text, arguments, told):
    assert perflab("run", "suite", cwd=workspace).returncode == 0
    (workspace / path).parent.mkdir(parents=True, exist_ok=True)
    (workspace / path).write_text(text)
    result = perflab(*arguments, cwd=workspace)
    assert "Traceback" not in result.stderr
    assert told in result.stderr + result.stdout
    assert len(result.stderr.strip().splitlines()) <= 1


def test_a_run_is_measured_by_one_process_at_a_time(slow, perflab):
    process = start(slow)
    wait_for_records(slow, 1)
    run = newest(slow)
    second = perflab("run", "suite", "--resume", run.name, cwd=slow)
    assert second.returncode == 2
    assert "being measured" in second.stderr
    assert perflab("keep", run.name, cwd=slow).returncode == 2
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    names = (run / "records.jsonl").read_text().splitlines()
    assert len({json.loads(line)["case_id"] for line in names}) == len(names)


def test_a_run_whose_kernel_vanished_is_not_finished(slow, perflab):
    extra = slow / "kernels" / "example" / "axpy" / "later.py"
    extra.write_text("def axpy(x, y, alpha): return alpha * x + y\n")
    process = start(slow)
    wait_for_records(slow, 1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    extra.unlink()
    result = perflab("run", "suite", "--resume", newest(slow).name, cwd=slow)
    assert result.returncode == 2
    assert "no longer there" in result.stderr
