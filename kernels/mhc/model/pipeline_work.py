"""What one process of a pipeline does: time its stages alone, measure the link, then train, step by step."""

import copy
import ctypes
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, schedules

from perflab.measure.pipeline_orders import STAGES_PER_RANK

from .pipeline_stages import Job, Share, Stage, loss_of

#: Calls of an action that its duration is the median of, after one that is not counted.
REPEATS = 7
#: Messages sent to and fro, of each size; the quickest counts, the others waited for a processor.
ROUNDS = 50
#: How long a rank waits for another before it gives up; less than whoever waits for all of them.
PATIENCE = timedelta(minutes=5)
_PR_SET_PDEATHSIG = 1


class Clock:
    """When actions began and ended, in seconds since the step began; computations on a CPU end when they return."""

    def __init__(self) -> None:
        self.zero, self.spans = 0.0, []

    def restart(self) -> None:
        """A step begins."""
        self.zero, self.spans = time.perf_counter(), []

    @contextmanager
    def span(self, label: str) -> Iterator[None]:
        """Note what runs inside."""
        begin = time.perf_counter() - self.zero
        yield
        self.spans.append([label, begin, time.perf_counter() - self.zero])

    def prolong(self) -> None:
        """What just ended did so only now."""
        self.spans[-1][2] = time.perf_counter() - self.zero


class TimedStage(PipelineStage):
    """torch's stage, whose computations are noted."""

    clock: Clock

    def forward_one_chunk(self, fwd_chunk_id: int, *arguments: Any, **named: Any) -> Any:
        """Note a forward."""
        with self.clock.span(f"{self.stage_index}F{fwd_chunk_id}"):
            return super().forward_one_chunk(fwd_chunk_id, *arguments, **named)

    def backward_one_chunk(self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, **named: Any) -> None:
        """Note a backward, whole or of the input."""
        with self.clock.span(f"{self.stage_index}{'B' if full_backward else 'I'}{bwd_chunk_id}"):
            super().backward_one_chunk(bwd_chunk_id, loss=loss, full_backward=full_backward, **named)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """Note a backward of the weights."""
        with self.clock.span(f"{self.stage_index}W{bwd_chunk_id}"):
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward=last_backward)


def _undivided() -> Callable[[], None]:
    """The weights' part of a backward, which is empty.

    torch divides a backward only if no two sites share a parameter, and sites' parameters are stacked here. So I is a
    whole backward, and W nothing.
    """
    return lambda: None


def make_schedule(job: Job, share: Share, clock: Clock, group: Any) -> Any:
    """torch's schedule on this rank's stages."""

    def example(stage: int) -> Tensor:
        if stage == 0:
            return torch.empty(job.message_shape[:2], dtype=torch.int64, device="meta")
        if stage == job.stages:
            logits = (*job.message_shape[:2], job.shape["vocabulary"])
            return torch.empty(logits, dtype=job.message_dtype, device="meta", requires_grad=True)
        return torch.empty(job.message_shape, dtype=job.message_dtype, device="meta", requires_grad=True)

    stages = []
    for stage, module in zip(share.indices, share.model, strict=True):
        ends = {"input_args": example(stage), "output_args": example(stage + 1)}
        stages.append(TimedStage(module, stage, job.stages, share.device, group=group, dw_builder=_undivided, **ends))
        stages[-1].clock = clock

    def timed_loss(logits: Tensor, target: Tensor) -> Tensor:
        loss = loss_of(logits, target)
        clock.prolong()
        return loss

    kind = schedules.get_schedule_class(job.schedule)
    return kind(stages if STAGES_PER_RANK[job.schedule] > 1 else stages[0], job.m, loss_fn=timed_loss)


def durations(stage: Stage, x: Tensor, target: Tensor | None, device: torch.device) -> dict[str, float]:
    """Median seconds of the stage's actions on one micro-batch: F, and B whole."""
    taken: dict[str, list[float]] = {"F": [], "B": []}
    for _ in range(REPEATS + 1):
        _synchronize(device)
        begin = time.perf_counter()
        out = stage(x)
        out = out if target is None else loss_of(out, target)
        _synchronize(device)
        middle = time.perf_counter()
        # As torch does it: the cotangent is there already, the input's gradient is taken off it.
        torch.autograd.backward(out, None if target is not None else torch.ones_like(out))
        _synchronize(device)
        taken["F"].append(middle - begin)
        taken["B"].append(time.perf_counter() - middle)
        x.grad = None
    return {kind: statistics.median(seconds[1:]) for kind, seconds in taken.items()}


def time_alone(job: Job, share: Share) -> dict[int, dict[str, float]]:
    """Durations of this rank's stages by stage, with `update` of all its stages under the first. Nothing is trained."""
    alike = copy.deepcopy(share)
    tokens = alike.batch(0)[: job.shape["B"] // job.m]
    found = {}
    for index, stage in zip(alike.indices, alike.model, strict=True):
        streams = torch.randn(job.message_shape, device=alike.device, dtype=job.message_dtype, requires_grad=True)
        x = streams if index else tokens[:, :-1]
        found[index] = durations(stage, x, tokens[:, 1:] if index == job.stages - 1 else None, alike.device)
        found[index]["update"] = 0.0
    seconds = []
    for _ in range(REPEATS):
        _synchronize(alike.device)
        begin = time.perf_counter()
        alike.update()
        _synchronize(alike.device)
        seconds.append(time.perf_counter() - begin)
    found[alike.indices[0]]["update"] = statistics.median(seconds[1:])
    return found


def measure_link(job: Job, group: Any, device: torch.device) -> dict[str, float]:
    """Bandwidth and latency between the group's first two ranks: messages to and fro, of 4 B and of the job's size."""
    if group.size() == 1:
        return {"bandwidth": float("inf"), "latency": 0.0}
    times: list[float] = []
    for size in (4, job.message_bytes):
        message = torch.zeros(size, dtype=torch.uint8, device=device)
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            if group.rank() == 0:
                dist.send(message, group=group, group_dst=1)
                dist.recv(message, group=group, group_src=1)
            elif group.rank() == 1:
                dist.recv(message, group=group, group_src=0)
                dist.send(message, group=group, group_dst=0)
            _synchronize(device)
            times.append((time.perf_counter() - begin) / 2)
    short, long = min(times[:ROUNDS]), min(times[ROUNDS:])
    return {"bandwidth": job.message_bytes / max(long - short, 1e-9), "latency": short}


def work(job: Job, folder: Path) -> None:
    """All that this rank does; what it finds is appended to the folder's `rank<r>.jsonl` as soon as it is there."""
    rank = dist.get_rank()
    device = torch.device(job.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    mesh = dist.init_device_mesh(device.type, (job.replicas, job.p), mesh_dim_names=("replicas", "stages"))
    group, replicas = mesh["stages"].get_group(), mesh["replicas"].get_group()
    share = Share(job, group.rank())
    with (folder / f"rank{rank}.jsonl").open("a", encoding="utf-8") as out:

        def tell(**found: Any) -> None:
            out.write(json.dumps(found) + "\n")
            out.flush()

        for turn in range(job.world):
            dist.barrier()
            if turn == rank:
                tell(durations=time_alone(job, share))
        dist.barrier()
        # Ranks that share processors: what each of them is worth when all are wanted.
        if rank < (os.cpu_count() or 1):
            tell(together=time_alone(job, share))
        dist.barrier()
        tell(link=measure_link(job, group, device))
        _train(job, share, (group, replicas if job.replicas > 1 else None, rank // job.p), tell)
    torch.save({"weights": share.named(), "gradients": share.gradients_of_step()}, folder / f"state{rank}.pt")


def _train(job: Job, share: Share, where: tuple[Any, Any, int], tell: Callable[..., None]) -> None:
    group, replicas, replica = where
    clock = Clock()
    schedule = make_schedule(job, share, clock, group)
    for step in range(job.steps):
        batch = share.batch(step * job.replicas + replica)
        losses: list[Tensor] = []
        arguments = (batch[:, :-1],) if 0 in share.indices else ()
        ends = {"target": batch[:, 1:], "losses": losses} if job.stages - 1 in share.indices else {}
        dist.barrier()
        clock.restart()
        share.begin()
        schedule.step(*arguments, return_outputs=False, **ends)
        with clock.span("update"):
            share.update(replicas)
        _synchronize(share.device)
        seconds = time.perf_counter() - clock.zero
        loss = torch.stack(losses).mean().item() if losses else None
        # On a GPU a call returns before it is done: only the step's end is known there.
        tell(step=step, seconds=seconds, loss=loss, spans=clock.spans if share.device.type == "cpu" else [])


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _die_with(parent: int) -> None:
    """End when the process that started us ends, however it does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def main() -> None:
    """`JOB.json FOLDER`; where the others are say torchrun's variables, or PERFLAB_RENDEZVOUS, RANK and WORLD_SIZE."""
    job_file, folder = map(Path, sys.argv[1:])
    job = Job.from_json(job_file.read_text(encoding="utf-8"))
    if "PERFLAB_PARENT" in os.environ:
        _die_with(int(os.environ["PERFLAB_PARENT"]))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world != job.world:
        raise SystemExit(f"{job_file}: {job.world} processes are needed, p times replicas; {world} were started")
    folder.mkdir(parents=True, exist_ok=True)
    meet = os.environ.get("PERFLAB_RENDEZVOUS", "env://")
    backend = "nccl" if job.device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=meet, rank=rank, world_size=world, timeout=PATIENCE)
    try:
        work(job, folder)
        dist.barrier()
    finally:
        dist.destroy_process_group()
