"""Records made for tests: their numbers are invented and say nothing of any machine or kernel."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from perflab.record import Accuracy, Bytes, Latency, OutputError, Reason, Record, Traffic

RUN_ID = "20260101-000000-made-0000"
HOSTILE = "</script><script>alert(1)</script><a href='https://example.org'>Ωß"
LONG = "triton_" + "x" * 293
STAGES = ("mhc/pre", "mhc/post_res", "mhc/coefficients", "mhc/sinkhorn", "mhc/norm_project", "mhc/layer")
STEMS = ("eager", "compiled", "compiled_broadcast", "triton_row_block", "triton_split_c", "tilelang_tile",
         "tilelang_pipeline", "peer_tile_kernels")  # fmt: skip
CACHE_BYTES = 100_000_000
SMALL = {"T": 1024, "n": 4, "C": 2560}


def record(name: str, shape: dict[str, int] | None = None, **fields: Any) -> Record:
    """A passed, native record of `stage/stem` with traffic twice the compulsory bytes; `fields` replace any part."""
    shape = shape or SMALL
    stage, _, stem = name.rpartition("/")
    fewest = compulsory(shape)
    parts: dict[str, Any] = {
        "run_id": RUN_ID, "case_id": f"{name} {shape} {fields.get('dtype', 'bf16')}", "stage": stage,
        "implementation": name, "toolkit": stem.partition("_")[0], "pass": "forward", "shape": shape, "dtype": "bf16",
        "device": "cpu", "status": "passed", "execution": "native", "compulsory": fewest,
    }  # fmt: skip
    if fields.get("status", "passed") == "passed":
        parts |= {
            "accuracy": accuracy(shape),
            "traffic": [traffic("dispatch", fewest, 2.0)],
            "latency": latency([1.0e-3, 1.1e-3, 0.9e-3, 1.05e-3, 0.95e-3, 1.0e-3, 1.2e-3]),
        }
    return Record(**(parts | fields))


def compulsory(shape: dict[str, int]) -> Bytes:
    """Bytes of an imagined stage: read n streams, write one."""
    write = 2 * shape["T"] * shape.get("C", 16)
    return Bytes(read_bytes=write * shape["n"], write_bytes=write)


def accuracy(shape: dict[str, int]) -> Accuracy:
    """An answer well within its tolerance."""
    error = OutputError(max_abs_error=1e-2, relative_l2_error=1.7e-3, elementwise_error=3e-3,
                        tolerance_l2=2e-3, tolerance_elementwise=4e-3)  # fmt: skip
    return Accuracy(max_abs_error=1e-2, relative_l2_error=1.7e-3, tolerance=2e-3, outputs={"u": error}, shape=shape,
                    draws=2, deterministic=True)  # fmt: skip


def traffic(source: Any, fewest: Bytes, times: float) -> Traffic:
    """`times` the compulsory bytes in both directions."""
    return Traffic(source=source, read_bytes=round(fewest.read_bytes * times), launches=3, collector="made",
                   write_bytes=round(fewest.write_bytes * times))  # fmt: skip


def latency(samples: list[float], cold: bool = False) -> Latency:
    """Samples in seconds, as one block."""
    return Latency(samples_s=samples, iterations=1, block_starts=[0], cold=cold, timer="perf_counter_ns",
                   stop_reason="samples", discarded=1)  # fmt: skip


def about(**fields: Any) -> dict[str, Any]:
    """A run.json with every part that a page reads."""
    return {
        "schema_version": 1, "run_id": RUN_ID, "suite_name": "made", "device": "cpu", "python": "3.11.0",
        "suite": {"question": "Does the page tell all that the records hold?"},
        "machine": {"cpu": "Imagined CPU", "cores": 8, "memory_bytes": 64 * 10**9, "os": "Linux", "gpus": [],
                    "last_level_cache_bytes": CACHE_BYTES},
        "torch": {"threads": 8, "l2_bytes": None}, "libraries": {"torch": "2.13.0", "tilelang": None},
        "ceiling": [{"kernel": "triad", "working_set_bytes": 10**9, "outside_cache": True, "bandwidth": 40e9}],
        "commit": {"id": "0123456789abcdef0123456789abcdef01234567", "dirty": True},
        "start": "2026-01-01T00:00:00+00:00", "end": "2026-01-01T00:10:00+00:00", "resumed": [], "interrupted": False,
    } | fields  # fmt: skip


def every_kind() -> list[Record]:
    """One stage with a record of each kind that a page must tell apart."""
    fewest, stage = compulsory(SMALL), "mhc/pre"
    failed = Reason(code="out_of_memory", text="CUDA out of memory")
    return [
        record(f"{stage}/eager"),
        record(f"{stage}/compiled", traffic=[traffic("compiler", fewest, 1.0), traffic("counter", fewest, 1.25)]),
        record(f"{stage}/compiled_uncounted", traffic=[], warnings=["bytes not counted: no schedule; none at all"]),
        record(f"{stage}/triton_row", execution="interpreted", latency=None,
               traffic=[traffic("interpreted", fewest, 1.1)]),
        record(f"{stage}/tilelang_tile", status="skipped", execution=None,
               reason=Reason(code="missing_toolkit", text="needs the package tilelang, which is not installed")),
        record(f"{stage}/wrong_sum", status="wrong",
               reason=Reason(code="inaccurate", text="u: relative L2 error 0.31, 0.002 allowed")),
        record(f"{stage}/hostile", implementation=f"{stage}/{HOSTILE}", status="failed", reason=failed),
        record(f"{stage}/{LONG}"),
    ]  # fmt: skip


def many(shapes: int = 30) -> list[Record]:
    """Every stage with every stem on many shapes; one stage has fewer dims and another dtype."""
    draw = random.Random(1)
    sizes = [(t, c) for c in (1280, 2560, 4096, 5120, 7168) for t in (256, 1024, 4096, 8192, 16384, 65536)][:shapes]
    records: dict[str, Record] = {}
    for stage in STAGES:
        for tokens, width in sizes:
            shape = {"T": tokens, "n": 4} | ({} if stage == "mhc/sinkhorn" else {"C": width})
            for index, stem in enumerate(STEMS):
                made = _varied(f"{stage}/{stem}", shape, index, draw)
                records[made.case_id] = made
    return list(records.values())


def _varied(name: str, shape: dict[str, int], index: int, draw: random.Random) -> Record:
    fewest = compulsory(shape)
    dtype = "bf16" if "C" in shape else "fp32"
    toolkit = STEMS[index].partition("_")[0]
    if toolkit == "peer":
        reason = Reason(code="missing_toolkit", text="needs the package tile_kernels, which is not installed")
        return record(name, shape, dtype=dtype, status="skipped", execution=None, reason=reason)
    source = {"eager": "dispatch", "compiled": "compiler", "triton": "interpreted", "tilelang": "compiler"}[toolkit]
    times = {"eager": 6.3}.get(toolkit, 1 + 0.4 * draw.random())
    counted = [traffic(source, fewest, times)]
    if toolkit == "tilelang":
        return record(name, shape, dtype=dtype, execution="emulated", latency=None, traffic=counted)
    centre = 2e-6 + times * (fewest.read_bytes + fewest.write_bytes) / 4e10
    samples = [centre * (1 + abs(draw.gauss(0, 0.03))) for _ in range(30)]
    return record(name, shape, dtype=dtype, traffic=counted, latency=latency(samples))


def write(folder: Path, records: list[Record], **fields: Any) -> Path:
    """A results folder with one run that holds `records`; gives the results folder."""
    run = folder / "results" / RUN_ID
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps(about(**fields)), encoding="utf-8")
    lines = [record.model_dump_json(by_alias=True) + "\n" for record in records]
    (run / "records.jsonl").write_text("".join(lines), encoding="utf-8")
    return run.parent
