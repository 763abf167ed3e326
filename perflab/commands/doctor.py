"""`perflab doctor`: what this machine can do, in plain words, and how to get more."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from perflab import machine, workspace
from perflab.catalogue import Implementation, StageEntry, discover
from perflab.errors import PerflabError
from perflab.measure import telemetry
from perflab.measure.pool import Pool, WorkerFailure
from perflab.measure.task import Task, execution
from perflab.present import units
from perflab.run import caches

#: What each toolkit is asked to do; only kernels of their own are compiled without a device.
_DOINGS = {"eager": ["check"], "compiled": ["check"], "triton": ["check", "compile"], "tilelang": ["check", "compile"]}
#: Sizes of a trial; other dims take 64.
TRIAL_SIZES = {"T": 8, "n": 4}
#: Samples of each of the two copies of one function in the A/A run.
NOISE_SAMPLES = 40


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, whether it is as good as it gets, what was found, how to get more."""

    subject: str
    good: bool
    found: str
    remedy: str = ""


def show(explicit: Path | None, quick: bool) -> None:
    """Print every finding; with `quick`, without the measurements."""
    place = workspace.find(explicit=explicit)
    console = Console(highlight=False, soft_wrap=True)
    for finding in _findings(place, quick):
        mark = "[green]+[/green]" if finding.good else "[yellow]-[/yellow]"
        console.print(f"{mark} [bold]{finding.subject:<12}[/bold] {finding.found}")
        if finding.remedy:
            console.print(f"  {'':<12} [dim]{finding.remedy}[/dim]")


def _findings(place: workspace.Workspace, quick: bool) -> Iterator[Finding]:
    gpus = machine.gpus()
    yield from _hardware(gpus)
    yield from _programs()
    yield from _places(place)
    if quick:
        return
    device = "cuda" if gpus else "cpu"
    print("trying the toolkits, the memory and the noise floor ...", file=sys.stderr)
    with Pool(timeout_s=120, environment=caches()) as pool:
        yield from _toolkits(pool, device)
        yield from _measured(pool, device)


def _hardware(gpus: list[dict[str, Any]]) -> Iterator[Finding]:
    cache = machine.last_level_cache_bytes()
    yield Finding(
        "processor", True, f"{machine.cpu_model()}, {machine.physical_cores()} cores, last-level cache "
        f"{units.size(cache) or 'of unknown size'}",
    )  # fmt: skip
    if not gpus:
        yield Finding(
            "GPU", False, "none that the NVIDIA driver knows: Triton and TileLang are checked and compiled, not timed",
            "on a machine with an NVIDIA GPU and driver the same commands measure natively",
        )  # fmt: skip
        return
    for gpu in gpus:
        yield Finding("GPU", True, f"{gpu['name']}, {units.size(gpu['memory_bytes'])}, driver {gpu['driver']}")
    state = telemetry.read(gpus[0]["uuid"])
    yield Finding(
        "clocks", not state["throttle_reasons"],
        f"SM {state['sm_clock_hz'] / 1e6:.0f} MHz of at most {state['sm_clock_max_hz'] / 1e6:.0f}; "
        f"throttled by: {', '.join(state['throttle_reasons']) or 'nothing'}",
    )  # fmt: skip
    allowed, text = telemetry.counters_permitted()
    remedy = "" if allowed else "run as root, or load the driver with NVreg_RestrictProfilingToAdminUsers=0"
    yield Finding("counters", allowed, text, remedy)


def _programs() -> Iterator[Finding]:
    """Compilers that toolkits call."""
    nvcc = shutil.which("nvcc")
    yield Finding(
        "nvcc", nvcc is not None, nvcc or "not on the PATH: TileLang kernels get no compile report",
        "" if nvcc else "install NVIDIA's CUDA toolkit",
    )  # fmt: skip
    compiler = shutil.which("g++")
    yield Finding(
        "g++", compiler is not None, compiler or "not on the PATH: torch.compile cannot run on the CPU",
        "" if compiler else "install gcc with its C++ compiler",
    )  # fmt: skip


def _toolkits(pool: Pool, device: str) -> Iterator[Finding]:
    """Each toolkit tried with the smallest kernel that comes with perflab."""
    catalogue = discover(workspace.builtin_root() / "kernels")
    versions = machine.versions()
    for toolkit, package in (("eager", "torch"), ("compiled", "torch"), ("triton", "triton"), ("tilelang", "tilelang")):
        if versions[package] is None:
            yield Finding(toolkit, False, f"{package} is not installed", f"pip install {package}")
            continue
        chosen = next(i for i in catalogue.implementations() if i.toolkit == toolkit)
        results = [_try(pool, catalogue.stage(chosen.stage), chosen, device, doing) for doing in _DOINGS[toolkit]]
        text = "; ".join(text for _, text in results)
        yield Finding(toolkit, all(good for good, _ in results), f"{package} {versions[package]}: {text}")


def _try(pool: Pool, stage: StageEntry, implementation: Implementation, device: str, doing: str) -> tuple[bool, str]:
    """Check or compile one small case in a worker; whether it went well, and in words how."""
    how = execution(implementation.toolkit, device)
    shape = {dim: TRIAL_SIZES.get(dim, 64) for dim in stage.contract.dims}
    task = Task(stage.folder, implementation.path, stage.function, implementation.toolkit, shape, shape, "fp32", device)
    worker = pool.start("compiler" if doing == "compile" else how)
    try:
        worker.ask("open", task=task)
        if doing == "compile":
            worker.ask("compile")
            return True, "compiles for sm_90a"
        worker.ask("check", seeds=[0])
        return True, {"native": "runs natively", "interpreted": "is interpreted", "emulated": "is emulated"}[how]
    except WorkerFailure as failure:
        return False, f"cannot {doing} here: {failure.text}"
    finally:
        worker.close()


def _places(place: workspace.Workspace) -> Iterator[Finding]:
    kind = "built in" if place.builtin else "yours"
    yield Finding("workspace", True, f"{place.root} ({kind}); results go to {place.results}")
    commit = machine.commit(place.root)
    text = f"{commit['id'][:12]}{' with changes' if commit['dirty'] else ''}" if commit else "none; runs name no commit"
    yield Finding("commit", commit is not None, text)


def _measured(pool: Pool, device: str) -> Iterator[Finding]:
    """The memory ceiling, and how far two copies of one function differ when sampled in turn."""
    worker = pool.start("native")
    try:
        ceiling = worker.ask("measure_ceiling", device=device)
        noise = worker.ask("measure_noise", device=device, samples=NOISE_SAMPLES)
    except WorkerFailure as failure:
        raise PerflabError(f"the measurement failed: {failure.text}") from failure
    outside = [entry for entry in ceiling if entry["outside_cache"]]
    for entry in ceiling:
        where = "memory" if entry["outside_cache"] else "cache or memory"
        text = f"{units.size(entry['bandwidth'], '/s')}, {entry['kernel']} of {units.size(entry['working_set_bytes'])}"
        yield Finding("bandwidth", bool(outside), f"{text} ({where})")
    yield Finding(
        "noise", noise["difference"] < 0.03,
        f"two copies of one function, sampled in turn, differ by {noise['difference']:.1%}; "
        f"single samples spread by {noise['spread']:.1%}",
        "" if noise["difference"] < 0.03 else "close other programs: smaller differences than this mean nothing",
    )  # fmt: skip
