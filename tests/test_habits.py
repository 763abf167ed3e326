"""Budgets and import boundaries, with an exceptions list that gives reasons."""

import ast
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

#: (what, where): why it may be over its budget.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("parameters", "perflab/cli.py"): "typer makes an option of every parameter",
}

ENGINE = sorted(path for path in (ROOT / "perflab").rglob("*.py") if "template" not in path.parts)
KERNELS = sorted((ROOT / "kernels").rglob("*.py"))
DASHBOARDS = sorted((ROOT / "dashboards").rglob("*.py"))
TENSOR_LIBRARIES = {"torch", "triton", "tilelang", "tvm"}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(node: ast.FunctionDef) -> int:
    """Lines of a function without its docstring."""
    lines = node.end_lineno - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        lines -= first.end_lineno - first.lineno + 1
    return lines


def imports(path: Path) -> set[str]:
    """Top-level names of every module that the file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def tops(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(path)}


@pytest.mark.parametrize("path", ENGINE, ids=relative)
def test_engine_files_keep_their_budgets(path):
    name = relative(path)
    if ("file", name) not in EXCEPTIONS:
        assert len(path.read_text().splitlines()) <= 300
    for node in functions(path):
        if ("function", name) not in EXCEPTIONS:
            assert length(node) <= 40, f"{node.name} is {length(node)} lines long"
        if ("parameters", name) not in EXCEPTIONS:
            arguments = node.args
            count = len([a for a in (*arguments.args, *arguments.kwonlyargs) if a.arg not in ("self", "cls")])
            assert count <= 5, f"{node.name} has {count} parameters"


@pytest.mark.parametrize("path", KERNELS, ids=relative)
def test_kernel_files_keep_their_budgets(path):
    assert len(path.read_text().splitlines()) <= 400
    for node in functions(path):
        assert length(node) <= 120, f"{node.name} is {length(node)} lines long"


def test_every_exception_is_still_needed():
    assert {where for _, where in EXCEPTIONS} <= {relative(path) for path in ENGINE}
    assert all(EXCEPTIONS.values())


@pytest.mark.parametrize("path", ENGINE, ids=relative)
def test_only_measure_imports_tensor_libraries(path):
    if "measure" not in path.parts:
        assert not tops(path) & TENSOR_LIBRARIES


@pytest.mark.parametrize("path", ENGINE, ids=relative)
def test_the_engine_knows_nothing_of_its_subject(path):
    assert not tops(path) & {"kernels", "suites", "dashboards", "tests"}
    if path.name != "doctor.py":
        assert "mhc" not in path.read_text().replace("mhc/pre", "").lower()


@pytest.mark.parametrize("path", KERNELS, ids=relative)
def test_kernels_import_perflab_and_their_toolkit(path):
    allowed = {"perflab", "torch", *sys.stdlib_module_names}
    toolkit = path.stem.lstrip("_").partition("_")[0]
    if toolkit in ("triton", "tilelang"):
        allowed.add(toolkit)
    if path.name == "stage.py":
        allowed = {"perflab"}
    assert tops(path) <= allowed


@pytest.mark.parametrize("path", DASHBOARDS, ids=relative)
def test_dashboards_never_import_tensor_libraries_or_measure(path):
    assert not tops(path) & TENSOR_LIBRARIES
    assert not any(name.startswith("perflab.measure") for name in imports(path))


def test_the_parts_that_run_before_workers_do_not_reach_torch_through_measure():
    """Files of measure/ that the parent imports must not import tensor libraries."""
    for name in ("task", "pool", "worker", "group", "sampling", "telemetry"):
        assert not tops(ROOT / "perflab" / "measure" / f"{name}.py") & TENSOR_LIBRARIES


@pytest.mark.parametrize("path", [*ENGINE, *KERNELS, *DASHBOARDS], ids=relative)
def test_every_file_and_public_function_has_a_caption(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{node.name} has no docstring"
