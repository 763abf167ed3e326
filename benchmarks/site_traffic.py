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
    """What a projection needs of one record. Fails: SystemExit for a record that passed without a count."""
    traffic = best(record)
    if traffic is None:
        raise SystemExit(f"{record.run_id}: {record.case_id} has no count: {record.warnings}")
    found: dict[str, Any] = {"stage": record.stage, "toolkit": record.toolkit, "pass": record.pass_}
    found |= {"dtype": record.dtype, **record.shape}
    found |= {"read_bytes": traffic.read_bytes, "write_bytes": traffic.write_bytes, "launches": traffic.launches}
    if inside := traffic.detail.get("tensor_ops", {}).values():
        found["tensor_ops_bytes"] = sum(one["read_bytes"] + one["write_bytes"] for one in inside)
        found["tensor_ops_launches"] = sum(one["count"] for one in inside)
    return found | {"source": traffic.source, "run": record.run_id} | ({"decode": True} if decode else {})


def table(names: list[str]) -> str:
    """The file's text: a row per case that passed, from the first run that counted it.

    Fails: SystemExit if a case passed in none of the runs, or has other counts in a later one.
    """
    rows: dict[str, dict[str, Any]] = {}
    asked: dict[str, str] = {}
    for run in (store.find(ROOT / "results", name) for name in names):
        decode = run.about()["suite_name"] == "decode"
        for record in run.records():
            asked[record.case_id] = f"{record.run_id}: {record.case_id}: {record.reason}"
            if record.status == "passed":
                found = row(record, decode)
                known = rows.setdefault(record.case_id, found)
                if known | {"run": ""} != found | {"run": ""}:
                    raise SystemExit(f"{record.case_id}: {known['run']} and {found['run']} count differently")
    if missing := [told for case, told in asked.items() if case not in rows]:
        raise SystemExit("not counted in any run:\n" + "\n".join(missing))
    lines = ",\n".join(sorted(json.dumps(one) for one in rows.values()))
    return '{"rows": [\n' + lines + "\n]}\n"


if __name__ == "__main__":
    OUT.write_text(table(sys.argv[1:]), encoding="utf-8")
