"""The parent's side of worker processes: a crash, a hang or a greedy kernel loses one case, not the run."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from perflab.errors import Interrupted, PerflabError
from perflab.measure import worker

#: Seconds between looks at a busy worker.
POLL_SECONDS = 0.05
#: How long an idle worker may take to leave by itself.
GRACE_SECONDS = 2.0
#: Share of the memory that was free at the start that one worker may take.
MEMORY_SHARE = 0.6


class WorkerFailure(Exception):
    """A request did not succeed: a stable code, a sentence, and whether the worker is still there."""

    def __init__(self, code: str, text: str, alive: bool) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.alive = alive


class Pool:
    """Starts workers by forking a server that has imported torch and `toolkits` already; ends them all on exit.

    environment  variables set in this process and so in every worker
    peak_bytes   most memory that all workers together were seen to hold
    """

    def __init__(
        self,
        timeout_s: float,
        memory_gb: float | None = None,
        environment: dict[str, str] | None = None,
        toolkits: Iterable[str] = (),
    ) -> None:
        self.timeout_s = timeout_s
        # The server and all workers inherit these.
        os.environ.update(environment or {})
        self.stop = threading.Event()
        free = psutil.virtual_memory().available * MEMORY_SHARE
        self.memory_limit = int(memory_gb * 1e9 if memory_gb else free)
        self.peak_bytes = 0
        self._context = multiprocessing.get_context("forkserver")
        os.environ["PERFLAB_PRELOAD"] = " ".join(toolkits)
        self._context.set_forkserver_preload(["perflab.measure.preload"])
        self._workers: list[Worker] = []
        self._logs = tempfile.TemporaryDirectory(prefix="perflab-")

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for one in list(self._workers):
            one.close()
        self._logs.cleanup()

    def start(self, mode: str) -> Worker:
        """A new worker in `mode`, one of worker.MODE_ENVIRONMENT."""
        one = Worker(self, self._context, mode, Path(self._logs.name) / f"{len(self._workers)}-{time.monotonic_ns()}")
        self._workers.append(one)
        return one

    def look_at_memory(self) -> None:
        """Note how much all workers hold now."""
        held = sum(one.resident_bytes() for one in self._workers if one.alive)
        self.peak_bytes = max(self.peak_bytes, held)


class Worker:
    """One process that answers requests one at a time."""

    def __init__(self, pool: Pool, context: Any, mode: str, log: Path) -> None:
        self.pool = pool
        self._log = log
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=worker.main, args=(theirs, mode, log), daemon=True, name=f"perflab-{mode}"
        )
        try:
            self._process.start()
        except (EOFError, ConnectionError) as error:
            raise PerflabError(f"no worker can be started: the server they are forked from ended ({error})") from error
        self._idle = True
        theirs.close()

    @property
    def pid(self) -> int:
        """The process's number."""
        return int(self._process.pid or 0)

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return bool(self._process.is_alive())

    def ask(self, request: str, **arguments: Any) -> Any:
        """Send a request and wait for its result.

        Fails: WorkerFailure (exception in the worker, crash, timeout, out of memory), Interrupted when the run stops.
        """
        if self.pool.stop.is_set():
            self.close()
            raise Interrupted
        self._idle = False
        try:
            self._connection.send((request, arguments))
        except OSError as error:
            raise self._died() from error
        deadline = time.monotonic() + self.pool.timeout_s
        while not self._connection.poll(POLL_SECONDS):
            if self.pool.stop.is_set():
                self.close()
                raise Interrupted
            self.pool.look_at_memory()
            if self.resident_bytes() > self.pool.memory_limit:
                self.close()
                text = f"took more than {self.pool.memory_limit / 1e9:.1f} GB of memory and was ended"
                raise WorkerFailure("out_of_memory", text, alive=False)
            if time.monotonic() > deadline:
                self.close()
                text = f"no answer to {request!r} in {self.pool.timeout_s:g} s; ended"
                raise WorkerFailure("timeout", text, alive=False)
        try:
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._died() from error
        self._idle = True
        if answer[0] == "ok":
            return answer[1]
        raise WorkerFailure(answer[1], answer[2], alive=True)

    def resident_bytes(self) -> int:
        """Memory that only this process holds; 0 once it is gone."""
        try:
            memory = psutil.Process(self._process.pid).memory_info()
        except (psutil.Error, ValueError):
            return 0
        return int(memory.rss - getattr(memory, "shared", 0))

    def close(self) -> None:
        """End the process: by asking if it is idle, by force if it is not or does not listen."""
        if self._idle and self.alive:
            with contextlib.suppress(OSError):
                self._connection.send(None)
            self._process.join(GRACE_SECONDS)
        if self.alive:
            self._process.kill()
        self._process.join()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._connection.close()
        if self in self.pool._workers:
            self.pool._workers.remove(self)

    def _died(self) -> WorkerFailure:
        self._process.join(5)
        code = self._process.exitcode
        self.close()
        if code is not None and code < 0:
            text = f"the worker was killed by {signal.Signals(-code).name}"
        else:
            text = f"the worker ended by itself with exit code {code}"
        return WorkerFailure("crash", text + self._last_words(), alive=False)

    def _last_words(self) -> str:
        """The last line that the process wrote, often the reason of its death."""
        try:
            lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            return ""
        words = [line for line in lines if line.strip() and not line.startswith((" ", "Thread", "Extension"))]
        return f"; its last words: {words[-1][:200]}" if words else ""
