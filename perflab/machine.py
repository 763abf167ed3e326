"""What this machine is: processors, caches, memory, GPUs, library versions, commit. Needs no tensor library."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil

LIBRARIES = ("torch", "triton", "tilelang", "numpy", "pandas", "plotly", "nvidia-ml-py")


def fingerprint(root: Path) -> dict[str, Any]:
    """Machine, libraries and commit, as run.json keeps them. Sizes in bytes."""
    return {
        "machine": {
            "cpu": cpu_model(),
            "cores": physical_cores(),
            "memory_bytes": psutil.virtual_memory().total,
            "last_level_cache_bytes": last_level_cache_bytes(),
            "os": platform.platform(),
            "gpus": gpus(),
        },
        "python": platform.python_version(),
        "libraries": versions(),
        "commit": commit(root),
    }


def versions() -> dict[str, str | None]:
    """Installed version of each library that a number can depend on."""
    found: dict[str, str | None] = {}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def physical_cores() -> int:
    """Cores that this process may use, without hyperthreads."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))


def cpu_model() -> str:
    """The processor's name as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        return platform.processor() or platform.machine()
    return platform.processor() or platform.machine()


def last_level_cache_bytes() -> int | None:
    """Size of the largest cache that one core sees; None where the system does not tell."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text(encoding="utf-8").strip()
        unit = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KMG")) * unit)
    return max(sizes, default=None)


def gpus() -> list[dict[str, Any]]:
    """NVIDIA GPUs as NVML sees them; empty without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            found.append(
                {
                    "name": pynvml.nvmlDeviceGetName(handle),
                    "uuid": pynvml.nvmlDeviceGetUUID(handle),
                    "memory_bytes": pynvml.nvmlDeviceGetMemoryInfo(handle).total,
                    "driver": pynvml.nvmlSystemGetDriverVersion(),
                }
            )
        return found
    finally:
        pynvml.nvmlShutdown()


def commit(root: Path) -> dict[str, Any] | None:
    """Commit and whether what is measured differs from it; None without git or a repository with a commit.

    New files count as a difference, except results: an untracked kernel cannot be found in the commit.
    """
    try:
        head = _git(root, "rev-parse", "HEAD")
        dirty = _git(root, "status", "--porcelain", "--", ".", ":(exclude)results")
    except (OSError, subprocess.SubprocessError):
        return None
    return {"id": head, "dirty": bool(dirty)}


def _git(root: Path, *arguments: str) -> str:
    result = subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=True
    )
    return result.stdout.strip()
