"""A run as JSON, CSV or Markdown."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from perflab.record import Record

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


def flat_rows(records: Sequence[Record], derived: Derived) -> list[dict[str, Any]]:
    """Records as flat rows: names, status, error, traffic source, derived columns, reason."""
    rows = []
    for record, columns in zip(records, derived, strict=True):
        data = record.model_dump(by_alias=True)
        rows.append(
            {key: data[key] for key in FLAT}
            | {"shape": " ".join(f"{dim}={size}" for dim, size in record.shape.items())}
            | {"relative_l2_error": record.accuracy.relative_l2_error if record.accuracy else None}
            | {"traffic_source": "+".join(traffic.source for traffic in record.traffic)}
            | dict(columns)
            | {"reason": f"{record.reason.code}: {record.reason.text}" if record.reason else None}
        )
    return rows
