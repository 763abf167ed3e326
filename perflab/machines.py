"""Machines that a projection can be made for: quoted ones in `machines/`, the user's own, and this one as measured.

A quoted number names the document that has it. Those documents were not at hand: H100's, H200's and B200's bandwidth,
memory and links, and H200's products, were compared with third-party pages, the rest with nothing.
"""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perflab.errors import PerflabError, unknown
from perflab.remarks import BUSY_SHARE

#: This machine, as the newest run on it measured it.
HERE = "here"
_FOLDER = Path(__file__).parent / "machines"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Quantity(_Section):
    """A number with where it comes from."""

    value: float = Field(gt=0, allow_inf_nan=False)
    source: str = Field(min_length=1)


class Machine(_Section):
    """One device, and what connects it with others.

    dtype      what a model is computed in here
    bandwidth  of its memory, B/s          memory  B
    peak       dense products in `dtype`, FLOP/s
    launch     what one more kernel costs while the host is ahead, s
    nvlink, network  to another device in the same and in another box, B/s in one direction; None where there is none
    """

    name: str
    about: str
    dtype: Literal["bf16", "fp32"]
    bandwidth: Quantity
    memory: Quantity
    peak: Quantity
    launch: Quantity
    nvlink: Quantity | None = None
    network: Quantity | None = None


def names() -> list[str]:
    """The quoted machines, and `here`."""
    return [*sorted(path.stem for path in _FOLDER.glob("*.toml")), HERE]


def load(name: str, results: Path, given: dict[str, float] | None = None) -> Machine:
    """A machine by its name, or from the path of a TOML file.

    given  numbers of the user that replace the machine's, by field

    Fails: PerflabError for an unknown name, a file that does not fit, or `here` without a run that measured it.
    """
    for key, value in (given or {}).items():
        if not (math.isfinite(value) and value > 0):
            raise PerflabError(f"{key}: expected a number above 0, got {value:g}")
    replaced = {key: {"value": value, "source": "given"} for key, value in (given or {}).items()}
    if name == HERE:
        return _parse(_here(results, set(replaced)) | replaced, HERE)
    path = Path(name) if name.endswith(".toml") else _FOLDER / f"{name}.toml"
    if path.parent == _FOLDER and not path.is_file():
        raise unknown("machine", name, [*names(), "a path that ends in .toml"])
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PerflabError(f"{path}: cannot be read as TOML: {error}") from error
    return _parse({"name": path.stem, **data, **replaced}, str(path))


def _parse(data: dict[str, Any], where: str) -> Machine:
    try:
        return Machine.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        if first["type"] == "model_type":
            text = f'{where}: {place}: expected {{ value = NUMBER, source = "WHERE FROM" }}, got {first["input"]!r}'
            raise PerflabError(text) from error
        raise PerflabError(f"{where}: {place}: {first['msg'][0].lower()}{first['msg'][1:]}") from error


def _here(results: Path, given: set[str]) -> dict[str, Any]:
    """What the newest run on this machine measured: first those with a product rate, of them those nobody disturbed."""
    from perflab import store

    mine = [about for about in (run.about() for run in reversed(store.runs(results))) if is_here(about)]
    mine.sort(key=lambda one: (not one.get("compute"), _others(one) is None, (_others(one) or 0.0) > BUSY_SHARE))
    about = mine[0] if mine else None
    if about is None:
        raise PerflabError(f"no run in {results} measured this machine's memory: `perflab run suite` does")
    if about.get("compute") is None and (missing := sorted({"peak", "launch"} - given)):
        hints = {"peak": "--peak FLOP/S", "launch": "--assume launch=SECONDS"}
        raise PerflabError(
            f"run {about['run_id']} measured no {' and no '.join(missing)} of this machine: "
            f"run a suite with training steps, or give {' and '.join(hints[one] for one in missing)}"
        )
    return _told(about, HERE)


def of_run(about: dict[str, Any]) -> Machine | None:
    """The machine of a run, as the run measured it; None if it did not measure all that a projection needs."""
    if not about.get("compute") or not _bandwidth(about):
        return None
    return _parse(_told(about, f"that of run {about['run_id']}"), about["run_id"])


def _told(about: dict[str, Any], name: str) -> dict[str, Any]:
    """What the run measured of its machine, with what its hardware is."""
    compute, device = about.get("compute"), about["device"]
    dtype = "bf16" if device == "cuda" else "fp32"
    threads = compute.get("threads") if compute else None
    how = f" with {threads} thread{'s' if threads > 1 else ''}" if threads else ""
    others = _others(about)
    if others is None:
        how += ", not looked whether other programs ran"
    elif others > BUSY_SHARE:
        how += f" while other programs used {others:.0%} of the processors"
    measured = {"peak": compute["matmul"][dtype], "launch": compute["launch_s"]} if compute else {}
    hardware = about["machine"]
    memory = hardware["gpus"][0]["memory_bytes"] if device == "cuda" else hardware["memory_bytes"]
    told = {"bandwidth": _bandwidth(about), "memory": memory} | measured
    where = hardware["gpus"][0]["name"] if device == "cuda" else f"{hardware['cpu']}, {hardware['cores']} cores"
    return {"name": name, "about": where, "dtype": dtype} | {
        key: {"value": value, "source": f"measured{'' if key == 'memory' else how}, run {about['run_id']}"}
        for key, value in told.items()
    }


def _bandwidth(about: dict[str, Any]) -> float:
    """As training steps have it, where that was measured; else the largest of a ceiling outside the cache, or 0."""
    if as_steps := (about.get("compute") or {}).get("bandwidth"):
        return float(as_steps)
    return max((one["bandwidth"] for one in about.get("ceiling") or [] if one["outside_cache"]), default=0.0)


def _others(about: dict[str, Any]) -> float | None:
    """The share of the processors that other programs used meanwhile; None for runs that did not look."""
    return about.get("bystanders")


def is_here(about: dict[str, Any]) -> bool:
    """Whether the run measured a ceiling, and on a machine like this one."""
    from perflab import machine

    then = about.get("machine") or {}
    now = {"cpu": machine.cpu_model(), "cores": machine.physical_cores(), "gpus": [g["name"] for g in machine.gpus()]}
    alike = all(then.get(key) == now[key] for key in ("cpu", "cores"))
    return alike and [gpu["name"] for gpu in then.get("gpus") or []] == now["gpus"] and _bandwidth(about) > 0
