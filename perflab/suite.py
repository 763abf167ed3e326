"""Suites: what to measure, read from TOML and checked before anything runs."""

from __future__ import annotations

import itertools
import tomllib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError

from perflab.errors import PerflabError, unknown

Pass = Literal["forward", "backward", "forward_backward", "step"]
Dtype = Literal["bf16", "fp16", "fp32"]
Size = StrictInt | list[StrictInt]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class GroupSpec(_Section):
    """Cases to cross: stages x implementations x shapes x dtypes x passes. Names are globs.

    preset  a shape that the stages name; `shape` then changes or adds to it
    passes  default: the stage's usual one
    """

    stages: list[str] = ["*"]
    implementations: list[str] = ["*"]
    preset: str | None = None
    shape: dict[str, Size] = {}
    dtypes: list[Dtype] = ["bf16"]
    passes: list[Pass] = []

    def shapes(self) -> list[dict[str, int]]:
        """Every combination of the sizes given."""
        lists = [size if isinstance(size, list) else [size] for size in self.shape.values()]
        return [dict(zip(self.shape, sizes, strict=True)) for sizes in itertools.product(*lists)]


class Timing(_Section):
    """When sampling stops, whichever comes first.

    half_width  relative half-width of the median's 95% interval that is good enough
    overhead    for steps: half-width of the 95% interval of the overhead over the baseline that is good enough, as a
                share of the baseline's time; max_seconds then counts for all cases of a group together
    """

    half_width: float = Field(default=0.02, gt=0, lt=1)
    overhead: float = Field(default=0.02, gt=0)
    min_samples: int = Field(default=10, ge=6)
    max_samples: int = Field(default=200, ge=6)
    max_seconds: float = Field(default=3.0, gt=0)
    batch_seconds: float = Field(default=0.01, gt=0)


class Checking(_Section):
    """How answers are checked.

    draws         fresh random inputs per case
    interpret     count Triton kernels' bytes in the interpreter, which many tokens or launches make slow
    tokens        most tokens given to an interpreter or emulator (native cases are checked at their full shape)
    """

    draws: int = Field(default=2, ge=1)
    tokens: int = Field(default=65, ge=1)
    interpret: bool = True


class Suite(_Section):
    """A suite file.

    question   what running it answers
    timeout_s  longest that one request to a worker may take, compilation included
    memory_gb  most memory that one worker may take; default: a share of what is free
    """

    question: str
    groups: list[GroupSpec] = Field(alias="group", min_length=1)
    timing: Timing = Timing()
    check: Checking = Checking()
    timeout_s: float = Field(default=180.0, gt=0)
    memory_gb: float | None = Field(default=None, gt=0)


def names(folder: Path) -> list[str]:
    """Names of all suites in `folder`."""
    return sorted(path.stem for path in folder.glob("*.toml") if path.is_file())


def load(name: str, folder: Path) -> Suite:
    """Read the suite `name` from `folder`.

    Fails: PerflabError for an unknown name, broken TOML or a field that does not fit: file, place, what was expected.
    """
    path = folder / f"{name}.toml"
    if name not in names(folder):
        raise unknown("suite", name, names(folder))
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PerflabError(f"{path}: broken TOML: {error}") from error
    return parse(data, str(path), text)


def parse(data: dict[str, object], where: str, text: str = "") -> Suite:
    """Check a suite's data. Fails: PerflabError naming the place and what was expected there."""
    try:
        suite = Suite.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        line = _line_of(first["loc"], text)
        raise PerflabError(f"{where}{line}: {place}: {_expected(first['type'], first['msg'])}") from error
    for group in suite.groups:
        for dim, size in group.shape.items():
            if any(value < 0 for value in (size if isinstance(size, list) else [size])):
                raise PerflabError(f"{where}: group.shape.{dim}: expected a size of at least 0, got {size}")
    return suite


def _expected(kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return "no such field"
    return message[0].lower() + message[1:]


def _line_of(location: tuple[int | str, ...], text: str) -> str:
    """The line where the innermost named field of `location` stands, counting repeated tables; empty if not found."""
    keys = [part for part in location if isinstance(part, str)]
    index = next((part for part in location if isinstance(part, int)), 0)
    if not keys or not text:
        return ""
    lines = text.splitlines()
    start = 0
    if len(keys) > 1:
        headers = [i for i, line in enumerate(lines) if line.strip().strip("[] ") == keys[0]]
        start = headers[index] if index < len(headers) else 0
    for number, line in enumerate(lines[start:], start + 1):
        for key in reversed(keys[1:] or keys):
            if line.partition("=")[0].strip().strip("\"'") == key:
                return f", line {number}"
    return ""
