"""One run from start to end: plan, measure, store. Read `execute` first."""

from __future__ import annotations

import contextlib
import datetime
import os
import secrets
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import filelock

from perflab import machine, store
from perflab.errors import Interrupted, PerflabError
from perflab.measure.bystanders import Bystanders
from perflab.measure.group import GroupRun
from perflab.measure.pool import Pool, WorkerFailure
from perflab.plan import Group, Plan
from perflab.record import Record
from perflab.suite import Suite
from perflab.workspace import Workspace, cache_folder


class Observer(Protocol):
    """Who is told how the run goes."""

    def phase(self, text: str) -> None:
        """Something that is not a case begins."""

    def group(self, group: Group) -> None:
        """A group begins."""

    def recorded(self, record: Record) -> None:
        """A case is complete and on disk."""


@dataclass(frozen=True)
class Order:
    """What to run, and where to put it."""

    suite_name: str
    suite: Suite
    plan: Plan
    device: str
    workspace: Workspace
    options: dict[str, Any]


def execute(order: Order, run: store.Run, observer: Observer) -> None:
    """Measure every case of the plan and append a record for each.

    Fails: Interrupted after Ctrl-C or SIGTERM, with what was measured kept; PerflabError when the disk refuses.
    """
    about = _about(order, run)
    run.write_about(about)
    # Not on a machine with a GPU: see measure/preload.py.
    toolkits = () if machine.gpus() else sorted({case.implementation.toolkit for case in order.plan.cases()})
    limits = order.suite.timeout_s, order.suite.memory_gb
    with Pool(*limits, caches(), toolkits) as pool, _interrupts_stop(pool):
        try:
            observer.phase("looking at the machine")
            with _one_at_a_time(pool, observer):
                about |= _environment(pool, order)
            run.write_about(about)
            for group in order.plan.groups:
                observer.group(group)

                def emit(record: Record) -> None:
                    run.append(record)
                    observer.recorded(record)

                with _one_at_a_time(pool, observer):
                    GroupRun(pool, order.suite, group, run.id, about["seed"], emit).measure()
            about["interrupted"] = False
        finally:
            about["end"] = _now()
            about["peak_memory_bytes"] = max(pool.peak_bytes, about.get("peak_memory_bytes") or 0)
            run.write_about(about)


def same_circumstances(about: dict[str, Any], root: Path) -> str | None:
    """What differs between an earlier run's machine, libraries or commit and the present ones; None if nothing does."""
    now = machine.fingerprint(root)
    return next((key for key in ("machine", "libraries", "commit") if about.get(key) != now[key]), None)


def _about(order: Order, run: store.Run) -> dict[str, Any]:
    """run.json as the run starts: interrupted until it is not."""
    before = run.about()
    return {
        "schema_version": 1,
        "run_id": run.id,
        "suite_name": order.suite_name,
        "suite": order.suite.model_dump(by_alias=True, mode="json"),
        "device": order.device,
        "cases": before.get("cases") or [case.id for case in order.plan.cases()],
        "options": order.options,
        "seed": before.get("seed", secrets.randbelow(2**31)),
        "start": before.get("start", _now()),
        "resumed": [*before.get("resumed", []), _now()] if "start" in before else [],
        "end": None,
        "interrupted": True,
        "peak_memory_bytes": before.get("peak_memory_bytes"),
        **machine.fingerprint(order.workspace.root),
    }


def _environment(pool: Pool, order: Order) -> dict[str, Any]:
    """What torch sees, and what bounds cases here, measured now."""
    worker, device = pool.start("native"), order.device
    try:
        environment = worker.ask("environment")
        if device == "cuda" and not environment["cuda_available"]:
            raise PerflabError("torch cannot use CUDA here: install its CUDA build, or use --device cpu")
        others = Bystanders([os.getpid(), worker.pid])
        about = {"torch": environment, "ceiling": worker.ask("measure_ceiling", device=device)}
        if any(case.pass_ == "step" for case in order.plan.cases()):
            about["compute"] = worker.ask("measure_compute", device=device)
        return about | {"bystanders": others.share()}
    except WorkerFailure as failure:
        raise PerflabError(f"the machine cannot be measured: {failure.text}") from failure
    finally:
        worker.close()


def caches() -> dict[str, str]:
    """Compile caches in one place, unless the user has put them elsewhere."""
    folder = cache_folder()
    defaults = {
        "TORCHINDUCTOR_CACHE_DIR": folder / "inductor",
        "TRITON_CACHE_DIR": folder / "triton",
        "TILELANG_CACHE_DIR": folder / "tilelang",
        # Compile in the worker itself: a daemon process may not have children.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    return {name: str(value) for name, value in defaults.items() if name not in os.environ}


@contextlib.contextmanager
def _interrupts_stop(pool: Pool) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into `Interrupted`, raised where the run waits."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        pool.stop.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _one_at_a_time(pool: Pool, observer: Observer) -> Iterator[None]:
    """Let one run at a time measure on this machine, group by group."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    lock, told = filelock.FileLock(folder / "measuring.lock"), False
    while True:
        if pool.stop.is_set():
            raise Interrupted
        try:
            lock.acquire(timeout=0.2)
            break
        except filelock.Timeout:
            if not told:
                observer.phase("waiting for another run on this machine")
                told = True
    try:
        yield
    finally:
        lock.release()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
