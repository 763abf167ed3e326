"""A decoder trained as a pipeline of processes on this machine, measured, and beside it what the simulator says."""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perflab.measure.pipeline_orders import order
from perflab.pipeline.simulate import Durations, Event, Execution, Link, Play, simulate

from .decoder import Design
from .pipeline_stages import Job, label_of

#: How often processes are looked at, and how long the dying of one may take to show in others.
POLL_SECONDS = 0.05
SHOWN_SECONDS = 0.2


class RankDied(RuntimeError):
    """A process of a pipeline ended before its work was done. What was measured before stands in its folder."""


@dataclass(frozen=True)
class Result:
    """What was measured of a pipeline, and predicted.

    step_s       seconds of each step but the first, of the rank that took longest since it left the barrier before
    losses       of all steps, mean over replicas
    durations    seconds of each stage's actions and update, measured one rank at a time between the steps, one thread
    link         measured between the first two ranks, less what their processors did for it
    execution    what the ranks share: how many processors' worth, and what of them a message takes; nothing on GPUs
    timeline     measured, of the step whose time is the median; empty on a GPU. Each rank's seconds since it left the
                 barrier before the step: ranks leave it at nearly one time
    predicted    by the simulator, from durations, link, message_bytes and execution
    replayed     by the simulator, from the means of the actions as the ranks noted them in these steps: what it makes
                 of order and messages alone; None on a GPU
    """

    job: Job
    step_s: list[float]
    losses: list[float]
    durations: list[Durations]
    link: Link
    message_bytes: int
    execution: Execution
    timeline: list[Event]
    predicted: Play
    replayed: Play | None

    @property
    def measured_s(self) -> float:
        """The median step."""
        return statistics.median(self.step_s)

    @property
    def predicted_s(self) -> float:
        """The simulator's step."""
        return self.predicted.step_s


def run(
    shape: Mapping[str, int],
    design: Design,
    schedule: str,
    p: int,
    m: int,
    steps: int = 4,
    *,
    folder: Path | None = None,
    timeout_s: float = 900,
    **options: Any,
) -> Result:
    """The pipeline on p processes of this machine; options are a Job's: replicas, dtype, device, seed.

    folder  where the ranks append what they measure, step by step; a temporary one if none is given

    Fails: ValueError for a job that there cannot be, or a folder that holds another's; RankDied, naming the rank, if a
    process ends early or time is up.
    """
    job = Job(dict(shape), design, schedule, p, m, steps, **options)
    if folder is None:
        return _run_in(Path(tempfile.mkdtemp(prefix="pipeline-")), job, timeout_s)
    launch(job, folder, timeout_s)
    return read(folder)


def _run_in(temporary: Path, job: Job, timeout_s: float) -> Result:
    """A run whose folder goes with it; after the death of a rank it stays, as the message points there."""
    died = False
    try:
        launch(job, temporary, timeout_s)
        return read(temporary)
    except RankDied:
        died = True
        raise
    finally:
        if not died:
            shutil.rmtree(temporary)


def launch(job: Job, folder: Path, timeout_s: float) -> None:
    """Start a process per rank and wait until all are through; none outlives this call, or this process."""
    folder.mkdir(parents=True, exist_ok=True)
    if left := sorted(folder.glob("rank*")):
        raise ValueError(f"{left[0]} is there already: another pipeline ran in this folder; give a new one")
    (folder / "job.json").write_text(job.to_json(), encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="pipeline-") as meeting:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "PERFLAB_PARENT": str(os.getpid()),
            "PERFLAB_RENDEZVOUS": (Path(meeting) / "ranks").as_uri(),
            "WORLD_SIZE": str(job.world),
        }
        command = [
            sys.executable,
            str(Path(__file__).with_name("pipeline_rank.py")),
            str(folder / "job.json"),
            str(folder),
        ]
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(job.world):
                told = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                with (folder / f"rank{rank}.log").open("wb") as log:
                    ranks.append(subprocess.Popen(command, env=environment | told, stdout=log, stderr=log))
            _wait(ranks, folder, time.monotonic() + timeout_s)
        finally:
            for process in ranks:
                process.kill()
                process.wait()


def read(folder: Path) -> Result:
    """What the ranks of a finished pipeline have left in the folder."""
    job = Job.from_json((folder / "job.json").read_text(encoding="utf-8"))
    rows = [_rows(folder / f"rank{rank}.jsonl") for rank in range(job.world)]
    steps = [[row for row in told if "step" in row] for told in rows]
    durations = _rehearsed(job, rows)
    seconds = [max(row["seconds"] for row in rank) for rank in zip(*steps, strict=True)]
    losses = [
        statistics.fmean(row["loss"] for row in rank if row["loss"] is not None) for rank in zip(*steps, strict=True)
    ]
    middle = 1 + seconds[1:].index(statistics.median_low(seconds[1:]))
    carried = _only(rows[0], "link")
    link, execution = Link(carried["bandwidth"], carried["latency"]), _execution(job, rows)
    played = order(job.schedule, job.p, job.m)
    play = simulate(played, durations, link, job.message_bytes, execution)
    noted = _noted(job, steps)
    carrying = Execution(message=execution.message)
    replay = simulate(played, noted, link, job.message_bytes, carrying) if noted else None
    timeline = [
        Event(rank, "compute", begin, end, label)
        for rank in range(job.p)
        for label, begin, end in steps[rank][middle]["spans"]
    ]
    return Result(job, seconds[1:], losses, durations, link, job.message_bytes, execution, timeline, play, replay)


def _rehearsed(job: Job, rows: list[list[dict[str, Any]]]) -> list[Durations]:
    """Durations of each stage's actions without a neighbour: medians over the steps but the first."""
    found: dict[int, Durations] = {}
    for told in rows[: job.p]:
        alone = _all(told, "alone")[1:]
        first = min(map(int, alone[0]["stages"]))
        for stage in alone[0]["stages"]:
            forward, backward = (statistics.median(one["stages"][stage][kind] for one in alone) for kind in "FB")
            # A rank's update is that of all its stages.
            update = statistics.median(one["update"] for one in alone) if int(stage) == first else 0.0
            found[int(stage)] = Durations(forward, backward, 0, update=update)
    return [one for _, one in sorted(found.items())]


def _noted(job: Job, steps: list[list[dict[str, Any]]]) -> list[Durations]:
    """Mean durations of each stage's actions in the steps but the first; nothing where ranks note none."""
    taken: dict[tuple[int, str], list[float]] = {}
    for rank in range(job.p):
        for label, begin, end in (span for step in steps[rank][1:] for span in step["spans"]):
            # A rank's update is that of all its stages: its first stage has the rank's number.
            key = (rank, label) if label == "update" else label_of(label)
            taken.setdefault(key, []).append(end - begin)
    mean = {key: statistics.fmean(seconds) for key, seconds in taken.items()}
    stages = range(job.stages) if mean else ()
    return [Durations(mean[stage, "F"], mean[stage, "B"], 0, update=mean.get((stage, "update"), 0)) for stage in stages]


def _execution(job: Job, rows: list[list[dict[str, Any]]]) -> Execution:
    """On a CPU ranks share the processors, which do less for each while all compute, and carry the messages."""
    if job.device != "cpu":
        return Execution()
    alone, together = (
        sum(one["processor_s"] for told in rows for one in _all(told, key)[1:]) for key in ("alone", "together")
    )
    shared = min(job.world, _only(rows[0], "processors")) * min(1.0, alone / together)
    return Execution(processors=max(1.0, shared), message=_only(rows[0], "link")["message"])


def _all(rows: list[dict[str, Any]], key: str) -> list[Any]:
    return [row[key] for row in rows if key in row]


def _only(rows: list[dict[str, Any]], key: str) -> Any:
    return _all(rows, key)[0]


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _wait(ranks: list[subprocess.Popen[bytes]], folder: Path, deadline: float) -> None:
    """Fails: RankDied as soon as one has ended with an error, or when time is up."""
    while any(process.poll() is None for process in ranks):
        if any(process.poll() for process in ranks):
            break
        if time.monotonic() > deadline:
            raise RankDied(f"pipeline: time is up with {_measured(folder)}; see {folder}")
        time.sleep(POLL_SECONDS)
    if not any(process.poll() for process in ranks):
        return
    # Those that lost a peer fail too: a signal is the likelier cause than an error that follows it.
    time.sleep(SHOWN_SECONDS)
    code, rank = min((process.poll(), rank) for rank, process in enumerate(ranks) if process.poll())
    error = _raised((folder / f"rank{rank}.log").read_text(encoding="utf-8", errors="replace"))
    why = f"by signal {-code}" if code < 0 else f"with exit code {code}: {error}"
    raise RankDied(f"pipeline: rank {rank} of {len(ranks)} died {why}, with {_measured(folder)}; see {folder}")


def _raised(log: str) -> str:
    """The first exception that the log tells of, of whatever class; torch puts `[rank0]: ` before every line."""
    lines = [re.sub(r"^\[rank\d+\]: ", "", line) for line in log.splitlines()]
    after = lines[next((at for at, line in enumerate(lines) if line.startswith("Traceback ")), len(lines)) :]
    return next((line for line in after[1:] if re.match(r"[\w.]+(: |$)", line)), "it said nothing")


def _measured(folder: Path) -> str:
    """How many steps all ranks have finished."""
    files = sorted(folder.glob("rank*.jsonl"))
    steps = min((sum("step" in row for row in _rows(path)) for path in files), default=0)
    return f"{steps} steps measured"
