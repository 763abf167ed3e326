"""What can be measured: stages and implementations, found by path and read without importing them."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from perflab.contract import Stage
from perflab.errors import PerflabError, one_line, unknown
from perflab.workspace import find

TOOLKITS = ("eager", "compiled", "triton", "tilelang", "peer")
#: Files of workspaces are imported under names that begin so.
PRIVATE_PACKAGE = "_perflab_"
_NOT_IMPLEMENTATIONS = {"stage.py", "reference.py", "__init__.py"}


@dataclass(frozen=True)
class Implementation:
    """One competitor: the path is the name.

    problem  why the file cannot be used, if reading it already tells
    """

    stage: str
    stem: str
    path: Path
    caption: str
    toolkit: str
    requires: tuple[str, ...]
    problem: str | None = None

    @property
    def name(self) -> str:
        """The full name, `mhc/pre/eager`."""
        return f"{self.stage}/{self.stem}"


@dataclass(frozen=True)
class StageEntry:
    """A stage folder: its contract and who competes."""

    name: str
    folder: Path
    caption: str
    implementations: tuple[Implementation, ...]
    wrong: tuple[Implementation, ...] = ()

    @property
    def function(self) -> str:
        """The name of the function in every file of the stage."""
        return self.name.rpartition("/")[2]

    @functools.cached_property
    def contract(self) -> Stage:
        """The stage's contract. Fails: PerflabError when stage.py cannot be loaded or has no STAGE."""
        path = self.folder / "stage.py"
        try:
            stage = load_module(path).STAGE
        except (Exception, SystemExit) as error:
            raise PerflabError(f"{path}: {one_line(error)}") from error
        if not isinstance(stage, Stage):
            raise PerflabError(f"{path}: STAGE must be a perflab.Stage")
        return stage


@dataclass(frozen=True)
class Catalogue:
    """All stages of a workspace, with the implementations added from elsewhere."""

    stages: dict[str, StageEntry] = field(default_factory=dict)

    def stage(self, name: str) -> StageEntry:
        """The stage of that name. Fails: PerflabError with the nearest names."""
        if name not in self.stages:
            raise unknown("stage", name, self.stages)
        return self.stages[name]

    def implementation(self, name: str) -> Implementation:
        """The implementation of that name, wrong ones included. Fails: PerflabError with the nearest names."""
        known = {i.name: i for i in self.implementations(wrong=True)}
        if name not in known:
            raise unknown("implementation", name, known)
        return known[name]

    def implementations(self, wrong: bool = False) -> Iterator[Implementation]:
        """Every implementation in order; with `wrong`, the mistakes that the check must refuse too."""
        for stage in self.stages.values():
            yield from stage.implementations
            if wrong:
                yield from stage.wrong


def discover(kernels: Path, extra: Iterable[Path] = ()) -> Catalogue:
    """Find every stage below `kernels`, then add implementations from `extra` files and folders.

    Fails: PerflabError for an extra path that does not exist or fits no stage.
    """
    stages = {}
    for contract in sorted(path for path in kernels.rglob("stage.py") if path.is_file()):
        folder = contract.parent
        name = folder.relative_to(kernels).as_posix()
        stages[name] = StageEntry(
            name=name,
            folder=folder,
            caption=_caption(contract),
            implementations=tuple(_read(path, name) for path in _files(folder)),
            wrong=tuple(_read(path, name, "wrong/") for path in _files(folder / "wrong")),
        )
    catalogue = Catalogue(stages)
    for path in extra:
        catalogue = _add(catalogue, path)
    return catalogue


def load(name: str, workspace: Path | None = None) -> ModuleType:
    """A file of the workspace's kernels as a module, by its path: `load("mhc/pre/eager").pre`.

    The workspace is the one given, else the nearest from the current folder upwards, else the one perflab comes with.

    Fails: PerflabError for an unknown name, with the nearest ones; whatever the file raises when it is imported.
    """
    kernels = find(explicit=workspace).kernels
    known = {file.relative_to(kernels).with_suffix("").as_posix(): file for file in kernels.rglob("*.py")}
    if name not in known:
        raise unknown("file of kernels", name, known)
    return load_module(known[name])


def load_module(path: Path) -> ModuleType:
    """Import a file by its path under a private package name, so that `kernels` never shadows another package.

    Its folder and the folders above it (up to `kernels/`) become its parent packages, so relative imports work.
    """
    path = path.resolve()
    root = next((p for p in path.parents if p.name == "kernels"), path.parent)
    package = PRIVATE_PACKAGE + hashlib.sha256(str(root).encode()).hexdigest()[:12]
    name = package
    _namespace(name, root)
    folder = root
    for part in path.relative_to(root).parts[:-1]:
        folder /= part
        name = f"{name}.{part}"
        _namespace(name, folder)
    name = f"{name}.{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _namespace(name: str, folder: Path) -> None:
    if name not in sys.modules:
        package = ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.glob("*.py") if p.name not in _NOT_IMPLEMENTATIONS and not p.name.startswith("_"))


def _caption(path: Path) -> str:
    try:
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return ""
    return docstring.partition("\n")[0].strip()


def _read(path: Path, stage: str, prefix: str = "") -> Implementation:
    """Read caption, REQUIRES and function names from the source, without running it."""
    stem, caption, problem = prefix + path.stem, "", None
    requires: tuple[str, ...] = ()
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as error:
        problem = f"syntax error in line {error.lineno}: {error.msg}"
    except (UnicodeDecodeError, ValueError, OSError) as error:
        problem = one_line(error)
    else:
        caption = (ast.get_docstring(tree) or "").partition("\n")[0].strip()
        try:
            requires = _requires(tree)
        except (ValueError, TypeError):
            problem = 'REQUIRES: expected names written out, such as ("torch", "triton")'
        function = stage.rpartition("/")[2]
        if function not in _functions(tree):
            problem = f"defines no function named {function!r}"
    return Implementation(stage, stem, path, caption, _toolkit(path.stem, requires), requires, problem)


def _requires(tree: ast.Module) -> tuple[str, ...]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "REQUIRES" for t in node.targets):
            value = ast.literal_eval(node.value)
            return (value,) if isinstance(value, str) else tuple(str(item) for item in value)
    return ()


def _functions(tree: ast.Module) -> set[str]:
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def _toolkit(stem: str, requires: tuple[str, ...]) -> str:
    """The first word of the file's name that is a toolkit's, else what it requires, else eager."""
    named = next((word for word in stem.split("_") if word in TOOLKITS), None)
    return named or next((toolkit for toolkit in ("triton", "tilelang") if toolkit in requires), "eager")


def _add(catalogue: Catalogue, path: Path) -> Catalogue:
    if not os.path.exists(path):  # noqa: PTH110 - Path.exists raises for a name that is too long
        raise PerflabError(f"--kernels {path}: no such file or folder")
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*.py") if p.name not in _NOT_IMPLEMENTATIONS)
    if not files:
        raise PerflabError(f"--kernels {path}: holds no Python file")
    stages = dict(catalogue.stages)
    for file in files:
        stage = _stage_of(file, stages)
        entry = stages[stage]
        added = _read(file, stage)
        if any(known.name == added.name for known in entry.implementations):
            raise PerflabError(f"--kernels {file}: {added.name} exists already; rename the file")
        stages[stage] = StageEntry(
            entry.name, entry.folder, entry.caption, (*entry.implementations, added), entry.wrong
        )
    return Catalogue(stages)


def _stage_of(file: Path, stages: dict[str, StageEntry]) -> str:
    """The stage whose function the file defines; the folder decides between several, and if the file cannot be read."""
    broken = None
    try:
        defined = _functions(ast.parse(file.read_text(encoding="utf-8")))
    except (SyntaxError, UnicodeDecodeError, ValueError) as error:
        defined, broken = set(), error
    fitting = [name for name in stages if name.rpartition("/")[2] in defined]
    by_folder = [name for name in fitting or stages if name.rpartition("/")[2] == file.resolve().parent.name]
    if len(fitting) == 1:
        return fitting[0]
    if len(by_folder) == 1:
        return by_folder[0]
    if broken is not None:
        raise PerflabError(f"--kernels {file}: {one_line(broken)}")
    if not fitting:
        functions = ", ".join(sorted({name.rpartition("/")[2] for name in stages}))
        raise PerflabError(f"--kernels {file}: defines no stage's function; name it after one of: {functions}")
    raise PerflabError(f"--kernels {file}: fits several stages ({', '.join(fitting)}); put it in a folder named as one")
