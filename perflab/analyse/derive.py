"""Derived columns: every metric applied to every record of a run. Pure functions of what was recorded."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perflab.analyse.context import Context
from perflab.catalogue import TOOLKITS, load_module
from perflab.errors import PerflabError, one_line
from perflab.record import Record

BUILTIN = Path(__file__).parent / "metrics"


@dataclass(frozen=True)
class Metric:
    """A derived column: a file whose name is the column's, with UNIT, KIND, BETTER and a function of the same name.

    kind    exact (the same on every machine) or sampled
    better  lower, higher or none
    column  the heading under which the table shows it, if it does (COLUMN)
    """

    name: str
    caption: str
    unit: str
    kind: str
    better: str
    function: Callable[[Record, Context], float | None]
    column: str | None = None


def metrics(workspace_dashboards: Path) -> list[Metric]:
    """The built-in metrics and the workspace's own (`dashboards/metrics/*.py`).

    Fails: PerflabError for a file that cannot be loaded or lacks a part.
    """
    folders = (BUILTIN, workspace_dashboards / "metrics")
    return [_load(path) for folder in folders for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]


@functools.cache
def _load(path: Path) -> Metric:
    try:
        module = load_module(path)
        caption = (module.__doc__ or "").strip().partition("\n")[0]
        return Metric(
            path.stem, caption, module.UNIT, module.KIND, module.BETTER, getattr(module, path.stem),
            getattr(module, "COLUMN", None),
        )  # fmt: skip
    except Exception as error:
        raise PerflabError(f"{path}: {one_line(error)}") from error


def derive(
    records: Sequence[Record], about: dict[str, Any], columns: Sequence[Metric]
) -> list[dict[str, float | None]]:
    """For each record its derived columns; None where a metric does not apply."""
    groups: dict[tuple[object, ...], list[Record]] = defaultdict(list)
    for record in records:
        groups[group_key(record)].append(record)
    derived = []
    for record in records:
        context = Context(about, groups[group_key(record)])
        derived.append({metric.name: _apply(metric, record, context) for metric in columns})
    return derived


def _apply(metric: Metric, record: Record, context: Context) -> float | None:
    """The metric's value. Fails: PerflabError naming the metric and the record when it raises."""
    try:
        return metric.function(record, context)
    except Exception as error:
        raise PerflabError(f"metric {metric.name}, on {record.case_id}: {one_line(error)}") from error


def group_key(record: Record) -> tuple[object, ...]:
    """What the records of one group share."""
    return (record.stage, tuple(record.shape.items()), record.dtype, record.pass_, record.device)


def in_order(records: Sequence[Record]) -> list[Record]:
    """Groups as they were measured; within one, toolkits in their order: records come as they were finished."""
    groups = list(dict.fromkeys(group_key(record) for record in records))
    toolkits = {name: index for index, name in enumerate(TOOLKITS)}
    return sorted(
        records,
        key=lambda record: (
            groups.index(group_key(record)),
            toolkits.get(record.toolkit, len(toolkits)),
            record.implementation,
        ),
    )
