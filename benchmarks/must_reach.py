"""The figures that perflab must reach, each with its bound and the command that gave it.

Run it on a quiet machine: `make benchmarks`. Nothing here is a test; times on a busy machine mean nothing.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PERFLAB = [sys.executable, "-m", "perflab"]


@dataclass(frozen=True)
class Figure:
    """One figure; reached when the value is at most the bound."""

    name: str
    value: float
    unit: str
    bound: float
    command: str

    def line(self) -> str:
        """The figure as a line of text."""
        mark = "reached" if self.value <= self.bound else "MISSED"
        return f"{mark:<8} {self.name:<58} {self.value:8.3f} {self.unit:<3} at most {self.bound:g}   {self.command}"


def seconds(arguments: list[str], repeat: int, environment: dict[str, str] | None = None) -> float:
    """Median wall time of a command."""
    taken = []
    for _ in range(repeat):
        start = time.perf_counter()
        subprocess.run(
            [*PERFLAB, *arguments], cwd=ROOT, env={**os.environ, **(environment or {})}, check=True, capture_output=True
        )
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def light_commands() -> list[Figure]:
    """Help and plans, which import no tensor library."""
    return [
        Figure("help", seconds(["--help"], 7), "s", 0.4, "perflab --help"),
        Figure("plan", seconds(["plan", "stages"], 7), "s", 1.0, "perflab plan stages"),
    ]


def the_quick_suite() -> list[Figure]:
    """The default suite without any cache, then with; its memory; what its kernels moved."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {"PERFLAB_CACHE": f"{folder}/cache", "CUDA_VISIBLE_DEVICES": ""}
        arguments = ["run", "suite", "quick", "--device", "cpu", "--results", f"{folder}/results", "--quiet"]
        cold = seconds(arguments, 1, environment)
        warm = seconds(arguments, 1, environment)
        run = sorted(Path(folder, "results", "local").iterdir())[-1]
        about = json.loads((run / "run.json").read_text())
        records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    workers = about["peak_memory_bytes"]
    parent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    command = "perflab run suite quick"
    return [
        Figure("quick suite, first time", cold, "s", 150, command + " (empty PERFLAB_CACHE)"),
        Figure("quick suite, caches warm", warm, "s", 60, command),
        Figure("peak memory: all workers, plus the largest other process", (workers + parent) / 1e9, "GB", 4, command),
        *traffic(records, command),
    ]


def traffic(records: list[dict], command: str) -> list[Figure]:
    """Interpreted bytes of the fused kernels over the fewest possible."""
    figures = []
    for record in records:
        counted = [entry for entry in record["traffic"] if entry["source"] == "interpreted"]
        if not counted:
            continue
        name, fewest = record["implementation"], record["compulsory"]
        if record["stage"].endswith("project"):
            x = counted[0]["detail"]["tensors"]["x"]["read_bytes"]
            size = record["shape"]["T"] * record["shape"]["n"] * record["shape"]["C"] * 2
            figures.append(Figure(f"{name}: bytes of x read, over its size", x / size, "x", 1.0, command))
        else:
            ratio = (counted[0]["read_bytes"] + counted[0]["write_bytes"]) / (
                fewest["read_bytes"] + fewest["write_bytes"]
            )
            figures.append(Figure(f"{name}: traffic over compulsory", ratio, "x", 1.02, command))
    return figures


FIGURES = (light_commands, the_quick_suite)


if __name__ == "__main__":
    missed = 0
    for measure in FIGURES:
        for figure in measure():
            print(figure.line(), flush=True)
            missed += figure.value > figure.bound
    sys.exit(1 if missed else 0)
