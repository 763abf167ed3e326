"""Titled tables of text with notes below them: what a command prints that is no run's table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape
from rich.table import Table


@dataclass(frozen=True)
class Section:
    """One table. words: how many columns from the left hold words; numbers stand to the right."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: list[str] = field(default_factory=list)
    words: int = 1


def print_sections(console: Console, sections: Sequence[Section]) -> None:
    """Print all of them for people."""
    for section in sections:
        console.print(escape(section.title), style="bold", soft_wrap=True, highlight=False)
        table = Table(header_style="dim", box=None)
        for index, name in enumerate(section.header):
            words = index < section.words or name == "source"
            table.add_column(name, justify="left" if words else "right", overflow="fold")
        for row in section.rows:
            table.add_row(*map(escape, row))
        console.print(table)
        for note in section.notes:
            console.print(f"  {escape(note)}", style="dim", soft_wrap=True, highlight=False)
        console.print()


def markdown(sections: Sequence[Section]) -> str:
    """The same in Markdown."""
    lines = []
    for section in sections:
        lines += [f"### {section.title}", "", "| " + " | ".join(section.header) + " |"]
        lines += ["|" + " --- |" * len(section.header)]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in section.rows]
        lines += ["", *(f"- {note}" for note in section.notes), *([""] if section.notes else [])]
    return "\n".join(lines).rstrip("\n")
