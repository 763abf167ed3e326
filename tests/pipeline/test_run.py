"""The real pipeline: processes that train a small decoder, beside one process that does; and what happens when one dies."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import psutil
import pytest
import torch

from perflab.catalogue import load_module
from perflab.measure import pipeline_orders
from perflab.pipeline.actions import actions, from_text
from perflab.pipeline.simulate import Durations, Execution, Link, simulate
from tests.conftest import ROOT

MODEL = ROOT / "kernels" / "mhc" / "model"
pipeline, stages, work, decoder, training = (
    load_module(MODEL / f"{stem}.py")
    for stem in ("pipeline", "pipeline_stages", "pipeline_work", "decoder", "training")
)
SHAPE = {
    "layers": 4, "C": 32, "ffn": 16, "routed": 4, "active": 2, "shared": 1, "heads": 2, "head_dim": 8, "kv_rank": 16,
    "rope": 4, "vocabulary": 256, "S": 24, "B": 8, "n": 4,
}  # fmt: skip
CASES = [
    ("residual", False, "1F1B", 2, 4),
    ("mhc", False, "1F1B", 4, 8),
    ("mhc", True, "1F1B", 2, 2),
    ("hc", False, "1F1B", 2, 2),
    ("mhc", True, "DualPipeV", 2, 4),
    ("mhc", False, "ZBVZeroBubble", 2, 4),
]


def alone(job, steps):
    """One process that takes the same micro-batches, of all replicas, one after the other.

    Its losses, its state, and the gradients of each step.
    """
    torch.set_num_threads(1)
    one = training.Training(job.shape, job.design, job.dtype, "cpu", job.seed)
    losses, taken = [], []
    for step in range(steps):
        found, loads = [], {}
        one.model.zero_grad()
        for replica in range(job.replicas):
            for micro_batch in one.batch(step * job.replicas + replica).chunk(job.m):
                loss = one.loss(micro_batch)
                loss.backward()
                found.append(loss.item())
                for name, mixture in one.model.mixtures():
                    loads[name] = loads.get(name, 0) + mixture.load
        for parameter in one.parameters.values():
            parameter.grad.div_(len(found))
        taken.append({name: parameter.grad.clone() for name, parameter in one.parameters.items()})
        one._update()
        for name, mixture in one.model.mixtures():
            mixture.load = loads[name]
            mixture.rebalance()
        losses.append(sum(found) / len(found))
    return losses, one.state(), taken


def states(folder, ranks):
    """The decoder's weights and its last gradients, from the shares of these ranks."""
    shares = [torch.load(folder / f"state{rank}.pt") for rank in ranks]
    return (stages.whole([share[kind] for share in shares]) for kind in ("weights", "gradients"))


def agrees(found, expected):
    """Weights and gradients are those of one process, up to rounding.

    AdamW divides by a gradient's own size: where rounding makes the gradient, a weight may go anywhere, and is passed over.
    """
    weights, gradients = found
    state, taken = expected
    assert weights.keys() == state.keys()
    assert gradients.keys() == taken[-1].keys()
    largest = max(gradient.norm() for gradient in taken[-1].values())
    for name, gradient in taken[-1].items():
        assert (gradients[name] - gradient).norm() <= 1e-4 * gradient.norm() + 1e-6 * largest, name
    passed_over = 0
    for name, value in state.items():
        sure = torch.ones_like(value, dtype=torch.bool)
        for step in taken:
            if name in step:
                sure &= step[name].abs() > 1e-3 * step[name].square().mean().sqrt() + 1e-6 * largest
        passed_over += (~sure).sum().item()
        torch.testing.assert_close(
            weights[name][sure], value[sure], rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert passed_over < sum(value.numel() for value in state.values()) / 2


@pytest.mark.parametrize(("residual", "recompute", "schedule", "p", "m"), CASES)
def test_a_pipeline_learns_what_one_process_learns(tmp_path, residual, recompute, schedule, p, m):
    design = decoder.Design(residual, "eager", recompute)
    result = pipeline.run(SHAPE, design, schedule, p, m, steps=3, folder=tmp_path)
    losses, *expected = alone(result.job, 3)
    assert result.losses == pytest.approx(losses, rel=1e-6)
    agrees(states(tmp_path, range(p)), expected)
    whole = training.Training(SHAPE, design, "fp32", "cpu", 0)
    assert result.losses[0] == pytest.approx(whole.loss(whole.batch(0)).item(), rel=1e-6)
    streams = 1 if residual == "residual" else 4
    assert result.message_bytes == SHAPE["B"] // m * SHAPE["S"] * SHAPE["C"] * streams * 4
    for rank, moves in enumerate(pipeline_orders.order(schedule, p, m)):
        played = [event.label for event in result.timeline if event.rank == rank]
        assert played == [*map(str, actions(moves)), "update"], "the order that is simulated is the one that ran"
    assert len(result.step_s) == 2 and len(result.durations) == result.job.stages


@pytest.mark.parametrize(("residual", "schedule"), [("residual", "1F1B"), ("mhc", "1F1B"), ("mhc", "ZBVZeroBubble")])
def test_the_simulator_makes_the_measured_step_of_the_measured_actions(residual, schedule):
    """Within a fifth of the steps in which the actions were noted, and within a factor of two from rehearsals.

    One of three runs has to show it: other programs on the machine, which tests cannot keep away, spoil a run as a whole.
    So this is a test of the code, not of how near predictions come: that is told by suite pipeline on a quiet machine,
    and by benchmarks/must_reach.py.
    """
    shape = {**load_module(MODEL / "presets.py").presets()["tiny"].shape(), "n": 4}
    off = []
    for _ in range(3):
        result = pipeline.run(shape, decoder.Design(residual), schedule, 2, 4, steps=6)
        replayed = result.replayed.step_s / statistics.fmean(result.step_s)
        off.append((replayed, result.predicted_s / result.measured_s))
        if abs(replayed - 1) < 0.2 and 0.5 < off[-1][1] < 2:
            return
    pytest.fail(f"replayed and predicted over measured: {off}")


def test_replicas_under_torchrun_learn_from_all_their_batches(tmp_path):
    job = stages.Job(SHAPE, decoder.Design("mhc"), "1F1B", 2, 2, steps=2, replicas=2)
    (tmp_path / "job.json").write_text(job.to_json())
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    done = subprocess.run(
        [*command, str(MODEL / "pipeline_rank.py"), str(tmp_path / "job.json"), str(tmp_path)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    losses, *expected = alone(job, 2)
    assert pipeline.read(tmp_path).losses == pytest.approx(losses, rel=1e-6)
    agrees(states(tmp_path, (0, 1)), expected)
    first, second = (next(states(tmp_path, ranks)) for ranks in ((0, 1), (2, 3)))
    assert all(torch.equal(first[name], second[name]) for name in first)
    before = (tmp_path / "rank0.jsonl").read_text()
    again = subprocess.run([*command, str(MODEL / "pipeline_rank.py"), str(tmp_path / "job.json"), str(tmp_path)],
                           capture_output=True, text=True, timeout=300, check=False)  # fmt: skip
    assert again.returncode != 0 and "rank0.jsonl" in again.stderr, "another run's folder is refused"
    assert (tmp_path / "rank0.jsonl").read_text() == before


def ranks_of(folder) -> list[psutil.Process]:
    """The processes of the pipeline whose folder this is, by rank."""
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if line[-1:] == [str(folder)] and any("pipeline_rank.py" in word for word in line):
            found[int(process.environ()["RANK"])] = process
    return [found[rank] for rank in sorted(found)]


def until(true, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


def steps_of(folder, rank) -> int:
    file = folder / f"rank{rank}.jsonl"
    return sum('"step"' in line for line in file.read_text().splitlines()) if file.exists() else 0


def test_a_killed_rank_is_named_the_others_end_and_what_was_measured_is_kept(tmp_path):
    failures = []

    def run():
        try:
            pipeline.run(SHAPE, decoder.Design("mhc"), "1F1B", 2, 2, steps=100_000, folder=tmp_path)
        except pipeline.RankDied as error:
            failures.append((time.monotonic(), str(error)))

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: steps_of(tmp_path, 0) > 2 and steps_of(tmp_path, 1) > 2)
    killed = time.monotonic()
    ranks_of(tmp_path)[1].send_signal(signal.SIGKILL)
    thread.join(30)
    ((noticed, told),) = failures
    assert noticed - killed < 5
    assert "rank 1 of 2 died by signal 9" in told
    assert str(tmp_path) in told
    assert ranks_of(tmp_path) == []
    kept = [json.loads(line) for line in (tmp_path / "rank0.jsonl").read_text().splitlines()]
    assert [row["step"] for row in kept if "step" in row][:3] == [0, 1, 2]


def test_a_folder_of_another_run_is_refused(tmp_path):
    """Steps of two runs in one file would be read as one's."""
    (tmp_path / "rank0.jsonl").write_text('{"step": 0}\n')
    with pytest.raises(ValueError, match=r"rank0.jsonl is there already"):
        pipeline.run(SHAPE, decoder.Design("mhc"), "1F1B", 2, 2, folder=tmp_path)
    assert (tmp_path / "rank0.jsonl").read_text() == '{"step": 0}\n'


def test_a_temporary_folder_goes_with_its_run_and_stays_when_a_rank_dies(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    pipeline.run(SHAPE, decoder.Design("residual"), "1F1B", 1, 1, steps=2)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(pipeline.RankDied) as died:
        pipeline.run(SHAPE | {"C": 2**20}, decoder.Design("residual"), "1F1B", 1, 1)
    (kept,) = tmp_path.iterdir()
    assert str(died.value).endswith(f"see {kept}") and "Traceback" in (kept / "rank0.log").read_text()


@pytest.mark.parametrize(("ends", "between"), [(1e-5, 3e-5), (0.0, 1e-4), (5e-5, 0.0)])
def test_a_message_to_and_fro_is_simulated_as_it_was_measured(ends, between):
    """One forward there and one cotangent back, around work of no length."""
    size, bandwidth = 10**6, 1e10
    carried = [2 * ends + between, 2 * ends + between + (size / bandwidth if between else 0)]
    link = work.link_of(carried, [ends, ends], size)
    assert link["message"] == ends
    play = simulate(
        from_text("0F0,0B0\n1F0,1B0"), [Durations(0, 0, 0)] * 2, Link(link["bandwidth"], link["latency"]), size,
        Execution(message=link["message"]),
    )  # fmt: skip
    assert play.step_s == pytest.approx(2 * carried[1])


def test_ends_that_work_at_once_leave_nothing_for_the_link():
    assert work.link_of([1e-5, 2e-5], [1e-5, 2e-5], 100) == {
        "bandwidth": float("inf"), "latency": 0.0, "message": 2e-5
    }  # fmt: skip


def test_ranks_do_not_outlive_who_started_them(tmp_path):
    script = (
        "from pathlib import Path\nfrom perflab.catalogue import load_module\n"
        f"model = Path({str(MODEL)!r})\n"
        "pipeline, decoder = load_module(model / 'pipeline.py'), load_module(model / 'decoder.py')\n"
        f"pipeline.run({SHAPE}, decoder.Design('mhc'), '1F1B', 2, 2, steps=100_000, folder=Path({str(tmp_path)!r}))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(ROOT)})
    until(lambda: steps_of(tmp_path, 0) > 0)
    parent.kill()
    parent.wait()
    until(lambda: ranks_of(tmp_path) == [], 5)


def test_a_rank_that_raises_says_why(tmp_path):
    """More memory than there is: every rank refuses, the first is told."""
    with pytest.raises(
        pipeline.RankDied, match=r"rank 0 of 1 died with exit code 1: perflab.contract.Unsupported: .* needs .* GB"
    ):
        pipeline.run(SHAPE | {"C": 2**20}, decoder.Design("residual"), "1F1B", 1, 1, folder=tmp_path)


@pytest.mark.parametrize(
    "raised", ["ValueError: eleven", "perflab.contract.Unsupported: eleven", "MemoryError", "Halt"]
)
def test_exceptions_of_every_class_are_found_in_a_log(raised):
    inside = '[rank0]: Traceback (most recent call last):\n[rank0]:   File "a.py", line 1\n[rank0]:     fail()\n'
    log = f"a warning: of a library\n{inside}[rank0]: {raised}\n\n{inside}[rank0]: Second: of cleaning up\n"
    assert pipeline._raised(log) == raised
    assert pipeline._raised(log.replace("[rank0]: ", "")) == raised
    assert pipeline._raised("a warning: of a library\n") == "it said nothing"


@pytest.mark.parametrize(("change", "told"), [
    ({"p": 3}, r"3 stages do not divide 4 layers; these do: \[1, 2, 4\]"),
    ({"schedule": "DualPipeV", "p": 4, "m": 8}, "8 stages do not divide 4 layers"),
    ({"m": 1}, "Number of microbatches"),
    ({"m": 3}, "3 micro-batches do not divide B = 8"),
    ({"schedule": "GPipe"}, "expected 1F1B"),
    ({"steps": 1}, "2 steps or more"),
])  # fmt: skip
def test_a_pipeline_that_cannot_be_is_refused_before_anything_starts(change, told):
    arguments = {"schedule": "1F1B", "p": 2, "m": 2, "steps": 2} | change
    with pytest.raises(ValueError, match=told):
        pipeline.run(SHAPE, decoder.Design("mhc"), **arguments)
