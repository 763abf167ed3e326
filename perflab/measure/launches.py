"""Kernels that are not launched: what remains of a call is what it allocates."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from perflab.record import Execution


@contextlib.contextmanager
def skipped(toolkit: str, execution: Execution) -> Iterator[None]:
    """Inside, kernels that would be interpreted or emulated are not run; their outputs stay unwritten.

    An allocation does not depend on what a kernel computes, and an interpreter is slow.
    """
    if execution == "native":
        yield
    elif toolkit == "tilelang":
        from perflab.measure.tile_kernel import capture

        with capture():
            yield
    else:
        from triton.runtime import interpreter

        launch = interpreter.GridExecutor.__call__
        interpreter.GridExecutor.__call__ = lambda *_arguments, **_options: None
        try:
            yield
        finally:
            interpreter.GridExecutor.__call__ = launch
