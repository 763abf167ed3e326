"""The child's side of a worker process: answers requests until told to stop or left alone."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from perflab.catalogue import PRIVATE_PACKAGE

_PR_SET_PDEATHSIG = 1

#: What each mode needs in the environment, before a toolkit is imported.
MODE_ENVIRONMENT = {
    "native": {},
    "interpreted": {"TRITON_INTERPRET": "1"},
    "emulated": {},
    "compiler": {},
}

#: Requests that need no case.
OF_THE_MACHINE = ("environment", "measure_ceiling", "measure_compute", "measure_noise")


def main(connection: Connection, mode: str, log: Path) -> None:
    """Serve one parent over `connection`: `(request, arguments)` in, `("ok", result)` or `("error", code, text)` out.
    None asks it to leave.

    Everything that kernels print goes to `log`; SIGINT is the parent's business; the process dies with its parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # A group of its own, so that what a kernel starts ends with the worker.
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(target, 1)
    os.dup2(target, 2)
    faulthandler.enable()
    os.environ.update(MODE_ENVIRONMENT[mode])
    _serve(connection, mode)


def _serve(connection: Connection, mode: str) -> None:
    session: Any = None
    own = os.getpid()
    if mode == "interpreted":
        _interpret_triton()
    while True:
        try:
            message = connection.recv()
        except EOFError:
            return
        if message is None:
            return
        request, arguments = message
        try:
            from perflab.measure import session as sessions

            if request == "open":
                session = sessions.open_case(**arguments)
                result = None
            elif request in OF_THE_MACHINE:
                result = getattr(sessions, request)(**arguments)
            else:
                result = getattr(session, request)(**arguments)
            answer: tuple[Any, ...] = ("ok", result)
        except Exception as error:
            traceback.print_exc()
            answer = ("error", _code(error, request), _text(error))
        if os.getpid() != own:
            # A child that a kernel forked must not answer in its parent's place.
            os._exit(0)
        connection.send(answer)


def _interpret_triton() -> None:
    """Import triton anew, under TRITON_INTERPRET: the server's copy has decorated its own functions for a GPU.

    Its compiled part stays: it cannot be initialised twice in a process, and knows nothing of interpreting.
    """
    for name in list(sys.modules):
        if name.partition(".")[0] == "triton" and not name.startswith("triton._C"):
            del sys.modules[name]
    from perflab.measure.interpreter_bf16 import mend_bf16

    mend_bf16()


def _code(error: Exception, request: str) -> str:
    """The stable code of an exception: what the error says of itself, else by its kind."""
    if own := _own_code(error):
        return own
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "can't allocate" in str(error):
        return "out_of_memory"
    if request == "open":
        return "import_error"
    return "exception"


def _own_code(error: Exception) -> str | None:
    """The code of perflab's own errors; an implementation's must not pass for one."""
    code = getattr(error, "code", None) if type(error).__module__.startswith("perflab.") else None
    return code if isinstance(code, str) else None


def _text(error: Exception) -> str:
    """The exception in a line, with the place in the implementation that raised it."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:
        lines = ["its text cannot be read"]
    if _own_code(error):
        return lines[0] if lines else type(error).__name__
    places = [
        f" ({Path(frame.f_code.co_filename).name}, line {line})"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).startswith(PRIVATE_PACKAGE)
    ]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:500] + "".join(places[-1:])
