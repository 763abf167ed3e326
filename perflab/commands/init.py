"""`perflab init`: a new workspace with one stage, one implementation, one mistake and one suite."""

from __future__ import annotations

import shutil
from pathlib import Path

from perflab.errors import PerflabError

TEMPLATE = Path(__file__).resolve().parent.parent / "template"


def create(folder: Path) -> None:
    """Copy the template to `folder`. Fails: PerflabError if the folder holds anything, or cannot be written."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise PerflabError(f"{folder} exists and is not an empty folder")
        shutil.copytree(TEMPLATE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "gitignore").rename(folder / ".gitignore")
    except OSError as error:
        raise PerflabError(f"{folder}: cannot be written ({error.strerror})") from error
    print(f"{folder}: a workspace; `cd {folder}` and `perflab run suite`")
