"""What a worker is told of a case. Plain values: the parent makes them without a tensor library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from perflab.plan import Case, Group
from perflab.record import Execution

#: Toolkits whose code a CPU can run as it is.
NATIVE_ON_CPU = ("eager", "compiled", "peer")
#: How the others run without their device.
WITHOUT_DEVICE: dict[str, Execution] = {"triton": "interpreted", "tilelang": "emulated"}


@dataclass(frozen=True)
class Task:
    """One case to load: where its files are, and on which shape, dtype and device which pass runs."""

    stage_folder: Path
    implementation: Path
    function: str
    toolkit: str
    shape: dict[str, int]
    check_shape: dict[str, int]
    dtype: str
    device: str
    pass_: str = "forward"


def execution(toolkit: str, device: str) -> Execution:
    """How the toolkit's code runs on `device`: native, interpreted or emulated."""
    if device != "cpu" or toolkit in NATIVE_ON_CPU:
        return "native"
    return WITHOUT_DEVICE[toolkit]


def task_for(case: Case, group: Group, tokens: int, device: str | None = None) -> Task:
    """The task of a case; what is not native is checked on at most `tokens` tokens."""
    device = device or case.device
    native = execution(case.implementation.toolkit, device) == "native"
    return Task(
        stage_folder=group.stage.folder,
        implementation=case.implementation.path,
        function=group.stage.function,
        toolkit=case.implementation.toolkit,
        shape=dict(case.shape),
        check_shape=group.stage.contract.check_shape(case.shape, None if native else tokens),
        dtype=case.dtype,
        device=device,
        pass_=case.pass_,
    )
