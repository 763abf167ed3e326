"""What nvcc says of TileLang kernels, for a GPU that need not be there: registers, spills, shared memory."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from perflab.measure.tile_kernel import TileKernel, capture, quiet
from perflab.record import KernelReport
from perflab.workspace import cache_folder

_ENTRY = re.compile(r"Compiling entry function '(\w+)'.*?(?=Compiling entry function|\Z)", re.DOTALL)


class NvccMissing(RuntimeError):
    """There is no nvcc to compile with: no report, and this reason."""

    code = "missing_compiler"


def compile_for(
    call: Callable[[], object], target: str = "sm_90a", prepare: Callable[[], object] | None = None
) -> list[KernelReport]:
    """Compile for `target` every kernel that `call` would launch; nothing is launched, so its results mean nothing.

    `call` uses CPU tensors of the case's shape, which cost nothing while untouched: on meta an operator runs its fake.
    `prepare` runs before; its kernels are not reported.

    Fails: NvccMissing; RuntimeError with nvcc's output when it refuses the source.
    """
    with capture() as launches:
        if prepare is not None:
            prepare()
            launches.clear()
        call()
    return [report for kernel in launches for report in _reports(kernel, target)]


def cuda_source(kernel: TileKernel, target: str = "sm_90a") -> tuple[str, dict[str, int]]:
    """The generated CUDA source, and the dynamic shared memory of each kernel in it."""
    with quiet() as tilelang:
        func = kernel.source()
        tvm = tilelang.tvm
        arch = tvm.target.Target({"kind": "cuda", "arch": target})
        with arch, tvm.transform.PassContext(opt_level=3, config=kernel.passes):
            artifact = tilelang.lower(func, target=arch)
    functions = {str(var.name_hint): func.attrs for var, func in artifact.device_mod.functions.items()}
    dynamic = {name: int(attrs.get("dyn_shared_memory_buf", 0)) for name, attrs in functions.items()}
    return str(artifact.kernel_source), dynamic


@functools.cache
def _reports(kernel: TileKernel, target: str) -> tuple[KernelReport, ...]:
    source, dynamic = cuda_source(kernel, target)
    found = []
    for entry in _ENTRY.finditer(_ptxas(source, target)):
        name, text = entry[1], entry[0]
        shared = dynamic[name] + _number(r"(\d+) bytes smem", text)
        spills = _number(r"(\d+) bytes spill stores", text) + _number(r"(\d+) bytes spill loads", text)
        registers = _number(r"Used (\d+) registers", text)
        found.append(KernelReport(name=name, registers=registers, spill_bytes=spills, shared_bytes=shared))
    if len(found) != len(dynamic):
        raise RuntimeError(f"ptxas told of {len(found)} kernels, the source has {len(dynamic)}")
    return tuple(found)


def _number(pattern: str, text: str) -> int:
    """The number in the first match; ptxas leaves out what is zero."""
    match = re.search(pattern, text)
    return int(match[1]) if match else 0


def _ptxas(source: str, target: str) -> str:
    """What ptxas prints of `source`, from the cache folder if it was asked before."""
    nvcc = _nvcc()
    arch = target.removeprefix("sm_")
    # The options of TileLang's own native build, so that the report is of the code that would run.
    options = ["-std=c++20", "-O3", f"-gencode=arch=compute_{arch},code={target}", "-Xptxas", "-v", "-cubin"]
    key = hashlib.sha256(json.dumps([source, options, _nvcc_version(nvcc), version("tilelang")]).encode()).hexdigest()
    cached = cache_folder() / "nvcc" / f"{key}.txt"
    if cached.exists():
        return cached.read_text()
    with tempfile.TemporaryDirectory() as folder:
        code, cubin = Path(folder) / "kernel.cu", Path(folder) / "kernel.cubin"
        code.write_text(source)
        command = [nvcc, *options, *(f"-I{path}" for path in _includes()), "-o", str(cubin), str(code)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"nvcc refused the generated source for {target}:\n{done.stderr}")
    _write(cached, done.stderr)
    return done.stderr


def _write(path: Path, text: str) -> None:
    """Write through a temporary file, so that another process never reads half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(name).replace(path)


def _nvcc() -> str:
    """The path of nvcc: on PATH, else in the CUDA folder that the environment names."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    found = shutil.which("nvcc") or (home and shutil.which("nvcc", path=str(Path(home) / "bin")))
    if not found:
        raise NvccMissing("nvcc is neither on PATH nor in $CUDA_HOME/bin; install the CUDA toolkit for compile reports")
    return str(found)


@functools.cache
def _nvcc_version(nvcc: str) -> str:
    return subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout


def _includes() -> tuple[Any, ...]:
    """The folders of TileLang's device headers and of the cutlass copy it carries."""
    with quiet() as tilelang:
        return tilelang.env.TILELANG_TEMPLATE_PATH, tilelang.env.CUTLASS_INCLUDE_DIR
