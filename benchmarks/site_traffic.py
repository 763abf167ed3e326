"""Write kernels/mhc/traffic.json: the counts that projections are made of, from kept runs of projection and decode.

python benchmarks/site_traffic.py RUN...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from perflab import store
from perflab.analyse.traffic import best
from perflab.record import Record

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "kernels" / "mhc" / "traffic.json"


def row(record: Record, decode: bool) -> dict[str, Any]:
    """What a projection needs of one record. Fails: SystemExit for a record without a count."""
    traffic = best(record)
    if record.status != "passed" or traffic is None:
        raise SystemExit(f"{record.run_id}: {record.case_id} has no count: {record.reason or record.warnings}")
    found: dict[str, Any] = {"stage": record.stage, "toolkit": record.toolkit, "pass": record.pass_}
    found |= {"dtype": record.dtype, **record.shape}
    found |= {"read_bytes": traffic.read_bytes, "write_bytes": traffic.write_bytes, "launches": traffic.launches}
    if inside := traffic.detail.get("tensor_ops", {}).values():
        found["tensor_ops_bytes"] = sum(one["read_bytes"] + one["write_bytes"] for one in inside)
        found["tensor_ops_launches"] = sum(one["count"] for one in inside)
    return found | {"source": traffic.source, "run": record.run_id} | ({"decode": True} if decode else {})


def table(names: list[str]) -> str:
    """The file's text: a row per record of the runs, in their order."""
    rows = []
    for name in names:
        run = store.find(ROOT / "results", name)
        decode = run.about()["suite_name"] == "decode"
        rows += [row(record, decode) for record in run.records()]
    lines = ",\n".join(json.dumps(one) for one in sorted(rows, key=lambda one: json.dumps(one, sort_keys=True)))
    return '{"rows": [\n' + lines + "\n]}\n"


if __name__ == "__main__":
    OUT.write_text(table(sys.argv[1:]), encoding="utf-8")
