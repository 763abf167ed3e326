"""A run as JSON, CSV or Markdown."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perflab.analyse.stats import median_interval
from perflab.analyse.traffic import ORDER
from perflab.record import Record

if TYPE_CHECKING:
    import pandas

Derived = Sequence[Mapping[str, float | None]]

#: Columns of the flat formats before the derived ones.
FLAT = ("case_id", "stage", "implementation", "toolkit", "pass", "dtype", "device", "status", "execution")


def as_json(records: Sequence[Record], derived: Derived) -> str:
    """An array of records of the documented schema, each with a `derived` object."""
    rows = [
        json.loads(record.model_dump_json(by_alias=True)) | {"derived": dict(columns)}
        for record, columns in zip(records, derived, strict=True)
    ]
    return json.dumps(rows, indent=1)


def as_csv(records: Sequence[Record], derived: Derived) -> str:
    """One row per record, in stored units."""
    out = io.StringIO()
    rows = flat_rows(records, derived)
    if rows:
        writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return out.getvalue().rstrip("\n")


def frame(records: Sequence[Record], derived: Derived) -> pandas.DataFrame:
    """The flat rows for charts; beside them raw samples (`samples_s`, a list), `sizes` and `observed` (dicts).

    Also the record itself, for what no flat row can hold.
    """
    import pandas

    rows = flat_rows(records, derived)
    more = [
        {
            "samples_s": list(record.latency.samples_s) if record.latency else [],
            "sizes": dict(record.shape),
            "observed": observed(record),
            "record": record,
        }
        for record in records
    ]
    return pandas.DataFrame([row | extra for row, extra in zip(rows, more, strict=True)])


def observed(record: Record) -> dict[str, float]:
    """What the stage's contract counts as a result by itself, by name."""
    return dict(record.accuracy.observed) if record.accuracy else {}


def flat_rows(records: Sequence[Record], derived: Derived) -> list[dict[str, Any]]:
    """Records as flat rows: names, status, error, bytes by source, latency's interval, derived columns, reason."""
    rows = []
    for record, columns in zip(records, derived, strict=True):
        data = record.model_dump(by_alias=True)
        rows.append(
            {key: data[key] for key in FLAT}
            | {"shape": " ".join(f"{dim}={size}" for dim, size in record.shape.items()), "label": record.label}
            | {"relative_l2_error": record.accuracy.relative_l2_error if record.accuracy else None}
            | {"observed": " ".join(f"{name}={value!r}" for name, value in observed(record).items())}
            | {"traffic_source": "+".join(traffic.source for traffic in record.traffic)}
            | _bytes(record)
            | _interval(record)
            | dict(columns)
            | {"reason": f"{record.reason.code}: {record.reason.text}" if record.reason else None}
            | {"warnings": " | ".join(record.warnings)}
        )
    return rows


def _bytes(record: Record) -> dict[str, int | None]:
    """Compulsory bytes and those of every source, so that no source hides another."""
    by_source: dict[str, Any] = {traffic.source: traffic for traffic in record.traffic}
    parts = {"compulsory": record.compulsory} | {source: by_source.get(source) for source in ORDER}
    return {
        f"{name}_{way}_bytes": getattr(part, f"{way}_bytes") if part else None
        for name, part in parts.items()
        for way in ("read", "write")
    }


def _interval(record: Record) -> dict[str, Any]:
    """The 95% interval of the median latency and how it was taken."""
    latency = record.latency
    low, high = median_interval(latency.samples_s) if latency else (None, None)
    return {
        "latency_low_s": low,
        "latency_high_s": high,
        "samples": len(latency.samples_s) if latency else None,
        "timer": latency.timer if latency else None,
        "cold": latency.cold if latency else None,
    }
