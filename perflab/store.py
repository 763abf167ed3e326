"""Runs on disk: one folder per run, records appended and flushed one by one, never edited."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
from pydantic import ValidationError

from perflab.errors import PerflabError, unknown
from perflab.record import Record
from perflab.workspace import cache_folder

#: New runs go below this folder, which git ignores; `perflab keep` moves one up.
LOCAL = "local"
#: Told before measuring: less free space than this and no run is started.
FREE_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Run:
    """One run folder: `run.json` says what, where and when; `records.jsonl` holds a line per case."""

    folder: Path

    @property
    def id(self) -> str:
        """The folder's name."""
        return self.folder.name

    def about(self) -> dict[str, Any]:
        """The content of run.json. Fails: PerflabError if it is missing or broken."""
        path = self.folder / "run.json"
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise PerflabError(f"{path}: cannot be read as JSON: {error}") from error
        if not isinstance(about, dict):
            raise PerflabError(f"{path}: expected an object")
        return about

    def write_about(self, about: dict[str, Any]) -> None:
        """Replace run.json in one step. Fails: PerflabError when the disk refuses it."""
        draft = self.folder / "run.json.tmp"
        try:
            draft.write_text(json.dumps(about, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            draft.replace(self.folder / "run.json")
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise PerflabError(f"{self.folder}: cannot write run.json: {error.strerror}") from error

    def lock(self) -> filelock.FileLock:
        """Held by the process that measures into the run; kept apart from the results."""
        folder = cache_folder() / "runs"
        folder.mkdir(parents=True, exist_ok=True)
        return filelock.FileLock(folder / f"{self.id}.lock")

    def append(self, record: Record) -> None:
        """Add one line, whole or not at all. Fails: PerflabError when the disk refuses it."""
        line = (record.model_dump_json(by_alias=True) + "\n").encode()
        path = self.folder / "records.jsonl"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(file).st_size
            try:
                written = os.write(file, line)
                if written != len(line):
                    raise OSError(f"only {written} of {len(line)} bytes written")
                os.fsync(file)
            except OSError as error:
                os.ftruncate(file, size)
                raise PerflabError(f"{path}: cannot write the record of {record.case_id}: {error}") from error
        finally:
            os.close(file)

    def records(self) -> list[Record]:
        """Every record. Fails: PerflabError naming the line that does not fit the schema."""
        path = self.folder / "records.jsonl"
        if not path.exists() or not path.stat().st_size:
            return []
        records = []
        # Not splitlines(): JSON strings may hold other characters that it takes for line ends.
        for number, line in enumerate(path.read_bytes().decode(errors="replace").removesuffix("\n").split("\n"), 1):
            try:
                records.append(Record.model_validate_json(line))
            except ValidationError as error:
                first = error.errors()[0]
                place = ".".join(str(part) for part in first["loc"]) or "record"
                raise PerflabError(f"{path}, line {number}: {place}: {first['msg']}") from error
        return records


def create(results: Path, suite: str) -> Run:
    """Start a new run folder below `results/local`, which is made if missing.

    Fails: PerflabError, before anything is measured, if the folder cannot be written or the disk is full.
    """
    base = results / LOCAL
    stem = re.sub(r"[^\w.-]+", "-", suite)[:40].strip("-.") or "run"
    try:
        base.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(base).free
        if free < FREE_BYTES:
            raise PerflabError(f"{base}: only {free} bytes free, {FREE_BYTES} needed; free some or use --results")
        folder = base / f"{time.strftime('%Y%m%d-%H%M%S')}-{stem}-{secrets.token_hex(2)}"
        folder.mkdir()
        run = Run(folder)
        run.write_about({"run_id": run.id})
    except OSError as error:
        raise PerflabError(f"{base}: cannot be written ({error.strerror}); use --results FOLDER") from error
    return run


def runs(results: Path) -> list[Run]:
    """Every run, committed and local, oldest first."""
    folders = [path.parent for pattern in ("*/run.json", f"{LOCAL}/*/run.json") for path in results.glob(pattern)]
    return [Run(folder) for folder in sorted(folders, key=lambda folder: folder.name)]


def find(results: Path, name: str | None) -> Run:
    """The run of that name (or an unambiguous beginning of it, or a path), or the newest.

    Fails: PerflabError when there is none.
    """
    with contextlib.suppress(OSError):  # a name can be too long for a path
        if name and (Path(name) / "run.json").is_file():
            return Run(Path(name).resolve())
    known = runs(results)
    if name is None:
        if not known:
            raise PerflabError(f"no runs in {results}: `perflab run suite` makes one")
        return known[-1]
    fitting = [run for run in known if run.id == name] or [run for run in known if run.id.startswith(name)]
    if len(fitting) != 1:
        raise unknown("run", name, [run.id for run in known])
    return fitting[0]


def keep(run: Run, results: Path) -> Run:
    """Move a local run up, where git sees it. Fails: PerflabError if it is kept already or the move fails."""
    target = results / run.id
    if run.folder.parent.name != LOCAL:
        raise PerflabError(f"{run.id} is kept already")
    if target.exists():
        raise PerflabError(f"{target} exists already")
    try:
        with run.lock().acquire(timeout=0):
            pass
    except filelock.Timeout as error:
        raise PerflabError(f"{run.id} is being measured; keep it when it is done") from error
    try:
        shutil.move(run.folder, target)
    except OSError as error:
        raise PerflabError(f"{target}: cannot move the run here: {error}") from error
    return Run(target)


def remove_if_empty(run: Run) -> None:
    """Take back a run folder that holds no record."""
    if not (run.folder / "records.jsonl").exists():
        with contextlib.suppress(OSError):
            shutil.rmtree(run.folder)
