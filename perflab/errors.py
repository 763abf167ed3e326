"""Errors that end a command with one line: what, where, how to mend."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every command."""

    FINE = 0
    REGRESSION = 1
    USAGE = 2
    UNDECIDED = 3
    INTERRUPTED = 130


class PerflabError(Exception):
    """Something that a user can mend; shown as one line, never as a traceback."""

    exit_code = Exit.USAGE


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM. Like KeyboardInterrupt it is no Exception, so that nothing swallows it."""


def unknown(kind: str, name: str, known: Iterable[str]) -> PerflabError:
    """An error for a name that does not exist, with the nearest names that do."""
    options = sorted(known)
    near = difflib.get_close_matches(name, options, n=3, cutoff=0.4)
    if near:
        hint = "did you mean " + " or ".join(near) + "?"
    elif options:
        hint = f"there are: {', '.join(options[:8])}{', ...' if len(options) > 8 else ''}"
    else:
        hint = "there are none here"
    return PerflabError(f"unknown {kind} {name!r}: {hint}")


def one_line(error: BaseException) -> str:
    """The error's type and first line, for a reason or a message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
