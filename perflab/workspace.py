"""The folders that perflab works on: kernels, suites, dashboards, results."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from perflab.errors import PerflabError

_PACKAGE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Workspace:
    """A root with `kernels/` and `suites/`; results are written below `results`."""

    root: Path
    results: Path
    builtin: bool

    @property
    def kernels(self) -> Path:
        """Where stages and implementations live."""
        return self.root / "kernels"

    @property
    def suites(self) -> Path:
        """Where suites live."""
        return self.root / "suites"

    @property
    def dashboards(self) -> Path:
        """Where charts live; the built-in ones serve a workspace that has none."""
        own = self.root / "dashboards"
        return own if own.is_dir() else builtin_root() / "dashboards"


def builtin_root() -> Path:
    """The workspace that comes with perflab: inside the wheel, or the checkout it was installed from."""
    carried = _PACKAGE / "builtin"
    return carried if carried.is_dir() else _PACKAGE.parent


def find(start: Path | None = None, explicit: Path | None = None, results: Path | None = None) -> Workspace:
    """The workspace at `explicit`, else the nearest one from `start` upwards, else the built-in one.

    Fails: PerflabError if `explicit` has no `kernels/` and `suites/`.
    """
    start = (start or Path.cwd()).resolve()
    if explicit is not None:
        root = explicit.resolve()
        if not _is_workspace(root):
            raise PerflabError(f"{explicit} is no workspace: it needs kernels/ and suites/ (`perflab init {explicit}`)")
    else:
        root = next((folder for folder in (start, *start.parents) if _is_workspace(folder)), builtin_root())
    builtin = root == _PACKAGE / "builtin"
    return Workspace(root, (results or (start if builtin else root) / "results").resolve(), builtin)


def cache_folder() -> Path:
    """Where compiled artefacts are kept between runs: PERFLAB_CACHE, else the user's cache folder."""
    base = os.environ.get("PERFLAB_CACHE") or os.environ.get("XDG_CACHE_HOME")
    if os.environ.get("PERFLAB_CACHE"):
        return Path(str(base)).expanduser()
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "perflab"


def _is_workspace(folder: Path) -> bool:
    return (folder / "kernels").is_dir() and (folder / "suites").is_dir()
