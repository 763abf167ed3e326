"""How a run goes, on stderr: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from perflab.plan import Group
from perflab.record import Record


class RunProgress:
    """Observer of a run; quiet, a live bar, or a line per case."""

    def __init__(self, total: int, quiet: bool) -> None:
        self._console = Console(stderr=True)
        self._quiet = quiet
        self._done, self._total = 0, total
        self._bar: Progress | None = None
        if not quiet and self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                TextColumn("left"), TimeRemainingColumn(), console=self._console, transient=True,
            )  # fmt: skip
            self._task = self._bar.add_task("starting", total=total)

    def __enter__(self) -> RunProgress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def phase(self, text: str) -> None:
        """Something that is not a case begins."""
        if self._bar:
            self._bar.update(self._task, description=text)
        elif not self._quiet:
            print(text, file=sys.stderr, flush=True)

    def group(self, group: Group) -> None:
        """A group begins."""
        self.phase(group.title)

    def recorded(self, record: Record) -> None:
        """A case is complete."""
        self._done += 1
        if self._bar:
            self._bar.advance(self._task)
        elif not self._quiet:
            reason = f": {record.reason.text}" if record.reason else ""
            print(f"  [{self._done}/{self._total}] {record.implementation}: {record.status}{reason}",
                  file=sys.stderr, flush=True)  # fmt: skip
