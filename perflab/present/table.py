"""The table: one block per group, one row per implementation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from perflab.analyse.derive import Metric, group_key
from perflab.analyse.traffic import best
from perflab.present import units
from perflab.present.formats import Derived, observed
from perflab.record import Record

HEADER = ("implementation", "status", "rel. error", "traffic", "x fewest", "source", "launches", "latency", "bandwidth",
          "of ceiling", "vs eager", "overhead", "tokens/s", "utilisation", "saved", "peak", "sm_90a")  # fmt: skip
#: Columns that hold words; numbers stand to the right.
WORDS = ("implementation", "status", "source")
#: Below this amplification there is nothing to explain.
NEAR_COMPULSORY = 1.05
STATUS_STYLE = {"passed": "green", "wrong": "bold red", "failed": "red", "skipped": "yellow"}


@dataclass(frozen=True)
class Block:
    """One group as text: its title, its columns, its rows and what must be said below them.

    Columns that are empty in every row are left out.
    """

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: list[str]


def blocks(records: Sequence[Record], derived: Derived, metrics: Sequence[Metric] = ()) -> list[Block]:
    """Group the records and write their cells; `metrics` adds those that ask for a column."""
    asking = [metric for metric in metrics if metric.column]
    groups: dict[tuple[object, ...], list[tuple[Record, Mapping[str, float | None]]]] = defaultdict(list)
    for record, columns in zip(records, derived, strict=True):
        groups[group_key(record)].append((record, columns))
    return [_block(members, asking) for members in groups.values()]


def print_table(console: Console, parts: Sequence[Block], about: Mapping[str, Any]) -> None:
    """Print all blocks, then what the whole table needs to be read rightly."""
    for block in parts:
        table = Table(title=escape(block.title), title_justify="left", title_style="bold", header_style="dim", box=None)
        for name in block.header:
            table.add_column(name, justify="left" if name in WORDS else "right", overflow="fold")
        for row in block.rows:
            status = Text(row[1], style=STATUS_STYLE[row[1]])
            table.add_row(escape(row[0]), status, *map(escape, row[2:]))
        console.print(table)
        for note in block.notes:
            console.print(f"  {escape(note)}", style="dim", soft_wrap=True, highlight=False)
        console.print()
    for line in legend(about, parts):
        console.print(escape(line), style="dim", soft_wrap=True, highlight=False)


def markdown(parts: Sequence[Block], about: Mapping[str, Any]) -> str:
    """The same table in Markdown."""
    lines = []
    for block in parts:
        lines += [f"### {block.title}", "", "| " + " | ".join(block.header) + " |", "|" + " --- |" * len(block.header)]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in block.rows]
        lines += ["", *(f"- {note}" for note in block.notes), *([""] if block.notes else [])]
    return "\n".join([*lines, *legend(about, parts)])


def legend(about: Mapping[str, Any], parts: Sequence[Block]) -> list[str]:
    """How to read the columns, and on which machine the numbers were taken."""
    machine = about.get("machine") or {}
    gpus = ", ".join(gpu["name"] for gpu in machine.get("gpus") or []) if about.get("device") == "cuda" else ""
    outside = [entry for entry in about.get("ceiling") or [] if entry["outside_cache"]]
    ceiling = max(outside, key=lambda entry: entry["bandwidth"], default=None)
    where = f"{gpus or machine.get('cpu', 'unknown processor')}, {machine.get('cores', '?')} cores"
    lines = [f"measured on {where}, run {about.get('run_id', '?')}"]
    if ceiling:
        lines.append(
            f"ceiling: {units.size(ceiling['bandwidth'], '/s')} ({ceiling['kernel']} of "
            f"{units.size(ceiling['working_set_bytes'])}, measured in this run)"
        )
    if any("[cache]" in cell for block in parts for row in block.rows for cell in row):
        cache = units.size(machine.get("last_level_cache_bytes"))
        lines.append(f"[cache]: the last-level cache ({cache}) may hold the working set; this is no memory bandwidth")
    lines.append(
        "traffic: bytes counted by `source`; x fewest: traffic over the contract's compulsory bytes; "
        "bandwidth: compulsory bytes over the median latency; sm_90a: as compiled for Hopper"
    )
    if any("overhead" in block.header for block in parts):
        lines.append(
            "overhead: time over the baseline's, the row without one; median over rounds in which every case had a "
            "turn, with its 95% interval; utilisation: the model's FLOPs over the matrix product rate measured in this "
            "run; explained: share of the overhead in named parts of the step, by profiles; rel. error: of the loss, "
            "gradient or update that is nearest to its tolerance"
        )
    if any("peak" in block.header for block in parts):
        lines.append(
            "saved: bytes that stay alive between forward and backward only for backward's sake, inputs and parameters "
            "not counted; peak: most bytes alive at once during the pass, above those alive before it"
        )
    return lines


def _block(members: Sequence[tuple[Record, Mapping[str, float | None]]], asking: Sequence[Metric]) -> Block:
    first, columns = members[0]
    sizes = first.label or " ".join(f"{dim}={size}" for dim, size in first.shape.items())
    fewest = f"  (fewest bytes: {units.size(columns.get('compulsory_bytes'))})" if first.compulsory else ""
    title = f"{first.stage}  {sizes}  {first.dtype}  {first.pass_}  on {first.device}{fewest}"
    said: dict[str, list[str]] = defaultdict(list)
    for record, own in members:
        for text in _notes(record, own):
            said[text].append(record.implementation.removeprefix(record.stage + "/"))
    notes = [f"{', '.join(names)}: {text}" for text, names in said.items()]
    seen = list(dict.fromkeys(name for record, _ in members for name in observed(record)))
    header = (*HEADER, *(str(metric.column) for metric in asking), *seen)
    rows = [
        (
            *_row(record, columns),
            *(units.value(columns.get(metric.name), metric.unit) for metric in asking),
            *(units.value(observed(record).get(name), "1") for name in seen),
        )
        for record, columns in members
    ]
    kept = [index for index in range(len(header)) if index < 2 or any(row[index] for row in rows)]
    return Block(title, tuple(header[i] for i in kept), [tuple(row[i] for i in kept) for row in rows], notes)


def _notes(record: Record, columns: Mapping[str, float | None]) -> list[str]:
    """What must be said of a record beside its row."""
    notes = [f"{record.reason.text} [{record.reason.code}]"] if record.reason else []
    return [*notes, *record.warnings, *_tensors(record, columns), *_other_sources(record)]


def _tensors(record: Record, columns: Mapping[str, float | None]) -> list[str]:
    """How an interpreted kernel was counted, and which tensors it moves where it moves clearly more than it must."""
    traffic = best(record)
    if traffic is None or "tensors" not in traffic.detail:
        return []
    notes = []
    if traffic.detail.get("sampled"):
        run, whole = traffic.detail["programs_run"], traffic.detail["programs"]
        notes.append(f"bytes counted in {run} of {whole} programs, which move equal bytes in each class of the grid")
    if (columns.get("amplification") or 0) < NEAR_COMPULSORY:
        return notes
    moved = {name: one["read_bytes"] + one["write_bytes"] for name, one in traffic.detail["tensors"].items()}
    parts = [f"{name} {units.size(total)}" for name, total in sorted(moved.items(), key=lambda item: -item[1])]
    return [*notes, "requests " + ", ".join(parts) + "; what is requested again may come from a cache"]


def _other_sources(record: Record) -> list[str]:
    """What the sources say that the table has no column for."""
    fewest = record.compulsory.read_bytes + record.compulsory.write_bytes if record.compulsory else 0
    others = [
        (traffic.source, traffic.read_bytes + traffic.write_bytes)
        for traffic in record.traffic
        if traffic is not best(record)
    ]
    return [
        f"traffic by {source}: {units.size(total)}" + (f", {units.ratio(total / fewest)} x fewest" if fewest else "")
        for source, total in others
    ]


def _row(record: Record, columns: Mapping[str, float | None]) -> tuple[str, ...]:
    traffic = best(record)
    spread = columns.get("latency_half_width")
    latency = units.seconds(columns.get("latency_s"))
    bandwidth = units.size(columns.get("effective_bandwidth"), "/s")
    if record.status == "passed" and not latency:
        latency = f"({record.execution})"
    return (
        record.implementation.removeprefix(record.stage + "/"),
        record.status,
        f"{record.accuracy.relative_l2_error:.1e}" if record.accuracy else "",
        units.size(columns.get("traffic_bytes")),
        units.ratio(columns.get("amplification")),
        traffic.source if traffic else "",
        str(traffic.launches) if traffic else "",
        f"{latency} ±{spread:.0%}" if spread is not None else latency,
        bandwidth + (" [cache]" if columns.get("in_cache") else ""),
        units.percent(columns.get("fraction_of_peak")),
        units.ratio(columns.get("speedup"), "x") if not record.step else "",
        _overhead(columns),
        units.value(columns.get("tokens_per_second"), "1/s"),
        units.percent(columns.get("flops_utilisation")),
        units.size(columns.get("saved_bytes")),
        units.size(columns.get("peak_bytes")),
        _compiled(record),
    )


def _overhead(columns: Mapping[str, float | None]) -> str:
    """`+12.3% [11.9, 12.8]`, the 95% interval in percent."""
    share, low, high = (columns.get(name) for name in ("overhead", "overhead_low", "overhead_high"))
    if share is None or low is None or high is None:
        return ""
    return f"{100 * share:+.1f}% [{100 * low:.1f}, {100 * high:.1f}]"


def _compiled(record: Record) -> str:
    """Registers of the hungriest kernel and what spills; only compilers of single kernels tell."""
    kernels = record.compile.kernels if record.compile else []
    if not kernels:
        return ""
    spilled = sum(kernel.spill_bytes for kernel in kernels)
    return f"{max(kernel.registers for kernel in kernels)} regs, " + (f"{spilled} B spilled" if spilled else "no spill")
