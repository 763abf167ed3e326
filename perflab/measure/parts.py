"""Names for the parts of a long call, so that its time can be told apart; they cost nothing unless asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch

#: How a profile's events tell parts from everything else.
PREFIX = "perflab part: "
#: A name that is no part's: what runs inside belongs to the part around it, which backward computes anew.
AGAIN = "again"

_asked = False


def part(name: str) -> AbstractContextManager[object]:
    """What runs inside belongs to the part of that name; an inner part takes from the outer one."""
    # In this order: compiled code must not depend on whether anybody asks.
    if torch.compiler.is_compiling() or not _asked:
        return contextlib.nullcontext()
    marked: AbstractContextManager[object] = torch.profiler.record_function(PREFIX + name)
    return marked


@contextlib.contextmanager
def named() -> Iterator[None]:
    """Parts are marked in profiles taken inside."""
    global _asked  # noqa: PLW0603 - kernels are called without a handle on who measures them
    _asked = True
    try:
        yield
    finally:
        _asked = False
