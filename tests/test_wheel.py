"""The wheel: in an empty folder and a new environment it runs the built-in workspace."""

import json
import subprocess
import sys
import zipfile

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)],
        check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    (path,) = out.glob("*.whl")
    return path


def test_it_carries_the_workspace_and_nothing_that_was_measured(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "perflab/builtin/kernels/mhc/pre/stage.py" in names
    assert "perflab/builtin/kernels/mhc/traffic.json" in names
    assert "perflab/builtin/suites/quick.toml" in names
    assert "perflab/machines/h200.toml" in names
    assert "perflab/builtin/dashboards/page.html.j2" in names
    assert "perflab/template/kernels/example/axpy/stage.py" in names
    assert not [name for name in names if ("results/" in name and "template" not in name) or "tests/" in name]


def test_it_runs_in_an_empty_folder_and_a_new_environment(wheel, tmp_path):
    """The new environment borrows the installed dependencies: only perflab itself comes from the wheel."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    pip = [str(tmp_path / "venv" / "bin" / "pip"), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    folder = tmp_path / "empty"
    folder.mkdir()

    def perflab(*arguments):
        return subprocess.run(
            [str(tmp_path / "venv" / "bin" / "perflab"), *arguments],
            cwd=folder, capture_output=True, text=True, timeout=500, check=False,
        )  # fmt: skip

    where = subprocess.run(
        [str(tmp_path / "venv" / "bin" / "python"), "-c", "import perflab; print(perflab.__file__)"],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert str(tmp_path) in where.stdout
    result = perflab("run", "suite", "--only", "mhc/pre/eager", "--only", "mhc/residual/eager", "--format", "json")
    assert result.returncode == 0, result.stderr
    records = json.loads(result.stdout)
    assert {record["implementation"] for record in records} == {"mhc/pre/eager", "mhc/residual/eager"}
    assert {record["status"] for record in records} == {"passed"}
    assert list((folder / "results" / "local").iterdir())
    page = perflab("dashboard", "build")
    assert page.returncode == 0, page.stderr
    assert (folder / "site" / "index.html").is_file()
