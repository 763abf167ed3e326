"""Compile an implementation's Triton kernels for a GPU that need not be there.

The implementation's own function is called; each Triton launch in it is compiled for the target instead of being
launched, so an implementation holds no compile code of its own. Must run where TRITON_INTERPRET is not set.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from perflab.record import KernelReport

#: Interception replaces process-wide state, so one thread at a time.
_LOCK = threading.Lock()


def compile_for(
    call: Callable[[], object], target: str = "sm_90a", prepare: Callable[[], object] | None = None
) -> list[KernelReport]:
    """Reports of the distinct kernels that `call` would launch, in order of first launch.

    call    runs the implementation on CPU, meta or CUDA tensors; nothing is launched, so its results are unwritten
    target  an NVIDIA architecture, such as `sm_90a`
    prepare runs before; its kernels are not reported

    An autotuned kernel has every configuration compiled and keeps its first for the rest of the process.

    Fails: ValueError for a target that is not `sm_<number>`; RuntimeError under TRITON_INTERPRET, or when cuobjdump
    fails; whatever `call` or the compiler raises.
    """
    if triton.knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET is set: kernels would be interpreted, not compiled; unset it")
    gpu = _gpu_target(target)
    reports: dict[bytes, KernelReport] = {}
    with _LOCK, _launches_compiled(gpu) as kernels:
        if prepare is not None:
            prepare()
            kernels.clear()
        call()
    for kernel in kernels:
        cubin = kernel.asm["cubin"]
        if cubin not in reports:
            reports[cubin] = _report(kernel)
    return list(reports.values())


def _gpu_target(target: str) -> Any:
    """Triton's target for `sm_90a`. Triton adds the `a` itself where the architecture has one."""
    match = re.fullmatch(r"sm_(\d+)a?", target)
    if match is None:
        raise ValueError(f"target {target!r}: expected an NVIDIA architecture such as sm_90a")
    return GPUTarget("cuda", int(match[1]), 32)


class _AbsentDevice:
    """What Triton asks of a driver in order to compile, answered without a device."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> str:
        # Triton keys its in-memory caches by device: a name of our own keeps these kernels out of the real ones.
        return f"absent sm_{self._target.arch}"

    def get_current_stream(self, device: object) -> int:
        del device
        return 0

    def get_benchmarker(self) -> Callable[..., list[float]]:
        """Calls once, which compiles; every configuration is equally fast on no device."""

        def benchmark(call: Callable[[], object], quantiles: tuple[float, ...] = (0.5,), **_: object) -> list[float]:
            call()
            return [0.0 for _ in quantiles]

        return benchmark


@contextmanager
def _launches_compiled(gpu: Any) -> Iterator[list[Any]]:
    """Within this context a launch only compiles; gives the compiled kernels, repeats included."""
    kernels: list[Any] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: object, warmup: bool, **kwargs: Any) -> Any:
        del warmup
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        kernels.append(kernel)
        return kernel

    # The private attribute, because `driver.active` would look for a real device, and fail where there is none.
    previous = driver._active
    driver.set_active(_AbsentDevice(gpu))
    try:
        with patch.object(JITFunction, "run", compile_only):
            yield kernels
    finally:
        driver.set_active(previous)


def _report(kernel: Any) -> KernelReport:
    """Registers, local memory and shared memory of one compiled kernel, read from its machine code."""
    usage = _resource_usage(kernel.asm["cubin"], kernel.metadata.name)
    return KernelReport(
        name=kernel.metadata.name,
        registers=usage["REG"],
        # Bytes of local memory per thread. Triton has no arrays of its own there, so all of it is spilled registers.
        spill_bytes=usage["STACK"] + usage["LOCAL"],
        # All of it is dynamic: the launch asks for it, and the machine code knows only the 1 KiB that the system keeps.
        shared_bytes=kernel.metadata.shared,
    )


def _resource_usage(cubin: bytes, name: str) -> dict[str, int]:
    """What `cuobjdump -res-usage` says of the function `name`: REG, STACK, SHARED, LOCAL, ..."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(rf"Function {re.escape(name)}:\s*(.*)", done.stdout)
    if done.returncode or found is None:
        said = done.stderr.strip() or done.stdout.strip()
        raise RuntimeError(f"cuobjdump -res-usage gave nothing for {name}: {said}")
    return {key: int(value) for key, value in re.findall(r"(\w+)(?:\[\d+\])?:(\d+)", found[1])}
