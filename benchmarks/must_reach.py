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


def run(*arguments: str) -> list[dict]:
    """Records, with their derived columns, of `perflab run ...` without a GPU."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*PERFLAB, "run", *arguments, "--results", folder, "--device", "cpu", "--quiet", "--format", "json"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr}")
    return json.loads(done.stdout)


def backward() -> list[Figure]:
    """Bytes of the best backward of each stage over the fewest possible, and launches of a fused site."""
    command = ["suite", "backward", "--only", "*triton*"]
    records = run(*command) + run(*PROJECT)
    shown = "perflab run " + " ".join(command)
    figures = []
    for stage, bound in (("project", 1.10), ("sinkhorn", 1.02), ("pre", 1.01), ("post_res", 1.01)):
        for T in sorted({r["shape"]["T"] for r in records if r["stage"] == f"mhc/{stage}"}):
            of_stage = [r for r in records if r["stage"] == f"mhc/{stage}" and r["shape"]["T"] == T]
            best = min(record["derived"]["amplification"] for record in of_stage)
            made = shown if T == 512 else "perflab run " + " ".join(PROJECT)
            figures.append(Figure(f"{stage} backward, T={T}: traffic over compulsory", best, "x", bound, made))
    for pass_, bound in (("forward", 5), ("backward", 8)):
        (site,) = [r for r in records if r["stage"] == "mhc/site" and r["pass"] == pass_]
        launches = site["derived"]["launches"]
        figures.append(Figure(f"fused site {pass_}: launches, F's own included", launches, "", bound, shown))
    return figures


def recomputation() -> list[Figure]:
    """What a fused stack keeps beyond the paper's table 3: its coefficients."""
    command = ["suite", "recompute", "--only", "mhc/stack/triton*"]
    records = run(*command)
    shown = "perflab run " + " ".join(command)
    return [
        Figure(
            f"stack L_r={record['shape']['L_r']}: kept beyond table 3, a token and site",
            record["derived"]["beyond_table3"], "B", COEFFICIENTS, shown,
        )
        for record in records
        if record["shape"]["L_r"]
    ]  # fmt: skip


def training_step() -> list[Figure]:
    """How long the step's suite takes, how wide its overheads are known, and how much of them the parts explain."""
    start = time.perf_counter()
    records = run("suite", "step")
    figures = [Figure("step suite", time.perf_counter() - start, "s", 180, "perflab run suite step")]
    for record in records:
        own, name = record["derived"], record["implementation"]
        if own["overhead"] is None:
            continue
        width = 100 * (own["overhead_high"] - own["overhead_low"])
        figures.append(Figure(f"{name}: width of the overhead's interval", width, "pp", 4, "perflab run suite step"))
        if own["overhead"] > LARGE:
            unexplained = abs(1 - own["explained"])
            figures.append(
                Figure(f"{name}: share that no part explains", unexplained, "", 0.1, "perflab run suite step")
            )
    return figures


def pipeline() -> list[Figure]:
    """How far off the simulator is from pipelines of real processes."""
    command = "perflab run suite pipeline"
    return [
        Figure(
            f"{record['implementation']} p={record['shape']['p']}: simulated step off by",
            abs(record["derived"]["prediction_error"]), "", 0.2, command,
        )
        for record in run("suite", "pipeline")
    ]  # fmt: skip


def projection() -> list[Figure]:
    """How fast a projection answers."""
    arguments = ["overhead", "--model", "27b", "--machine", "h200", "--mfu", "0.4"]
    return [Figure("overhead", seconds(arguments, 7), "s", 1.0, "perflab " + " ".join(arguments))]


#: An overhead below this share of a step is too small to say where it goes.
LARGE = 0.05
#: Enough tokens that the parts of phi's gradient are small beside x.
PROJECT = ("case", "mhc/project/triton_split_k", "--pass", "backward", "-p", "T=8192")
#: Bytes a token and site of the coefficients that fused kernels keep, at n = 4: m, r, h_pre, h_post and h_res in fp32.
COEFFICIENTS = 4 * (24 + 1 + 4 + 4 + 16)
FIGURES = (light_commands, the_quick_suite, backward, recomputation, training_step, pipeline, projection)


if __name__ == "__main__":
    # Names of figures, if only some are wanted: `python benchmarks/must_reach.py training_step pipeline`.
    missed = 0
    for measure in FIGURES:
        if sys.argv[1:] and measure.__name__ not in sys.argv[1:]:
            continue
        for figure in measure():
            print(figure.line(), flush=True)
            missed += figure.value > figure.bound
    sys.exit(1 if missed else 0)
