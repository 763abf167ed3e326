"""What one process of a pipeline does: measure the link, then time its stages alone and train, step by step."""

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

from perflab.measure.pipeline_orders import STAGES_PER_RANK, order
from perflab.pipeline.actions import BACKWARD, BACKWARD_WEIGHT, FORWARD, actions

from .pipeline_stages import Job, Share, label_of, loss_of

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


def make_schedule(job: Job, share: Share, clock: Clock, group: Any) -> tuple[list[TimedStage], Any]:
    """This rank's stages, and torch's schedule on them."""

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
    return stages, kind(stages if STAGES_PER_RANK[job.schedule] > 1 else stages[0], job.m, loss_fn=timed_loss)


def connect(job: Job, share: Share, schedule: Any) -> None:
    """A step that trains nothing: torch makes its connections and buffers in it."""
    _play(job, share, schedule, share.batch(0))
    share.begin()


def _play(job: Job, share: Share, schedule: Any, batch: Tensor) -> list[Tensor]:
    """Forward and backward of a batch by torch's schedule; gives the losses, of the last stage."""
    losses: list[Tensor] = []
    arguments = (batch[:, :-1],) if 0 in share.indices else ()
    ends = {"target": batch[:, 1:], "losses": losses} if job.stages - 1 in share.indices else {}
    schedule.step(*arguments, return_outputs=False, **ends)
    return losses


def rehearse(job: Job, share: Share, stages: list[TimedStage], clock: Clock) -> dict[str, Any]:
    """This rank's step without its messages: mean seconds of actions by stage and kind, the update's, and what all took
    of a processor's time.

    Every action of the rank's order is done in its order and by torch's stage, on streams and cotangents that are there
    already; then the update, which is taken back.
    """
    batch = share.batch(0)
    tokens, targets = batch[:, :-1].chunk(job.m), batch[:, 1:].chunk(job.m)
    by_index = {stage.stage_index: stage for stage in stages}
    losses: dict[int, Tensor] = {}
    share.begin()
    clock.restart()
    for stage in stages:
        stage.clear_runtime_states()
    begun = time.thread_time()
    for index, kind, at in actions(order(job.schedule, job.p, job.m)[share.rank]):
        stage = by_index[index]
        # Of its own for every micro-batch: torch receives the next step's messages into them.
        given = torch.ones(job.message_shape, device=share.device, dtype=job.message_dtype)
        _synchronize(share.device)
        if kind == FORWARD:
            if not stage.is_first:
                stage.set_local_fwd_input(given.normal_(), at)
            out = stage.forward_one_chunk(at, (tokens[at],), {}, save_forward_output=False)
            if stage.is_last:
                losses[at] = loss_of(out, targets[at])
        elif kind == BACKWARD_WEIGHT:
            stage.backward_weight_one_chunk(at)
        else:
            if not stage.is_last:
                stage.set_local_bwd_input((given,), at)
            loss = losses.pop(at) if stage.is_last else None
            stage.backward_one_chunk(at, loss=loss, full_backward=kind == BACKWARD)
        _synchronize(share.device)
        clock.prolong()
    means, spent = _means(clock.spans), time.thread_time() - begun
    with share.kept():
        begun = time.thread_time()
        with clock.span("update"):
            share.update()
            _synchronize(share.device)
        spent += time.thread_time() - begun
    share.begin()
    _, begin, end = clock.spans[-1]
    return {"stages": means, "update": end - begin, "processor_s": spent}


def _means(spans: list[Any]) -> dict[int, dict[str, float]]:
    taken: dict[int, dict[str, list[float]]] = {}
    for label, begin, end in spans:
        stage, kind = label_of(label)
        taken.setdefault(stage, {}).setdefault(kind, []).append(end - begin)
    return {stage: {kind: statistics.fmean(one) for kind, one in kinds.items()} for stage, kinds in taken.items()}


def measure_link(job: Job, group: Any, device: torch.device) -> dict[str, float]:
    """Between the group's first two ranks, by messages to and fro of 4 B and of the job's size, sent as torch does."""
    if group.size() == 1:
        return {"bandwidth": float("inf"), "latency": 0.0, "message": 0.0}
    usual, spent = [], []
    for size in (4, job.message_bytes):
        message, times, work = torch.zeros(size, dtype=torch.uint8, device=device), [], []
        for _ in range(ROUNDS):
            begin, begun = time.perf_counter(), time.process_time()
            if group.rank() < 2:
                for kind in (dist.isend, dist.irecv) if group.rank() == 0 else (dist.irecv, dist.isend):
                    one = dist.P2POp(kind, message, group=group, group_peer=1 - group.rank())
                    for request in dist.batch_isend_irecv([one]):
                        request.wait()
            _synchronize(device)
            times.append((time.perf_counter() - begin) / 2)
            work.append((time.process_time() - begun) / 2 if device.type == "cpu" else 0.0)
        usual.append(statistics.median(times))
        spent.append(statistics.median(work))
    return link_of(usual, spent, job.message_bytes)


def link_of(seconds: list[float], spent: list[float], message_bytes: int) -> dict[str, float]:
    """What carries messages, from a short and a long one: seconds one way, and of a processor at either end.

    bandwidth, latency  of what is left between the ends' own work: without limit, and 0, where nothing is
    message             seconds of a processor that a long message takes at either end, by all threads of the process
    """
    short, long = (max(0.0, one - 2 * ends) for one, ends in zip(seconds, spent, strict=True))
    latency = min(short, long)
    bandwidth = message_bytes / (long - latency) if long > latency else float("inf")
    return {"bandwidth": bandwidth, "latency": latency, "message": spent[-1]}


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
    with (folder / f"rank{rank}.jsonl").open("x", encoding="utf-8") as out:

        def tell(**found: Any) -> None:
            out.write(json.dumps(found) + "\n")
            out.flush()

        clock = Clock()
        stages, schedule = make_schedule(job, share, clock, group)
        connect(job, share, schedule)
        tell(link=measure_link(job, group, device), processors=_processors())
        for step in range(job.steps):
            # Between the steps that it foretells, as a machine's speed drifts.
            for turn in range(job.world):
                dist.barrier()
                if turn == rank:
                    tell(alone=rehearse(job, share, stages, clock))
            dist.barrier()
            # Ranks that share processors: what each of them is worth when all are wanted.
            tell(together=rehearse(job, share, stages, clock))
            tell(step=step, **_step(job, share, schedule, clock, (step * job.replicas + rank // job.p, replicas)))
    torch.save({"weights": share.named(), "gradients": share.gradients_of_step()}, folder / f"state{rank}.pt")


def _step(job: Job, share: Share, schedule: Any, clock: Clock, where: tuple[int, Any]) -> dict[str, Any]:
    """Train on the batch of this number; gives the step's seconds, loss and spans, since this rank left the barrier."""
    index, replicas = where
    batch = share.batch(index)
    dist.barrier()
    clock.restart()
    share.begin()
    losses = _play(job, share, schedule, batch)
    with clock.span("update"):
        share.update(replicas if job.replicas > 1 else None)
    _synchronize(share.device)
    seconds = time.perf_counter() - clock.zero
    loss = torch.stack(losses).mean().item() if losses else None
    # On a GPU a call returns before it is done: only the step's end is known there.
    return {"seconds": seconds, "loss": loss, "spans": clock.spans if share.device.type == "cpu" else []}


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
