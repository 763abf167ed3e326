"""Discovery by path: the path is the name, nothing is imported, files from elsewhere join in."""

import sys
from pathlib import Path

import pytest

from perflab.catalogue import discover, load_module
from perflab.errors import PerflabError
from tests.conftest import ROOT

STAGE = '''"""A stage."""
from perflab import Stage, Tensor, Tolerance
STAGE = Stage(("T",), {"x": Tensor("T")}, {"y": Tensor("T")}, {"bf16": {"*": Tolerance(1, 1)}}, "nowhere")
'''


@pytest.fixture
def kernels(tmp_path) -> Path:
    folder = tmp_path / "kernels" / "demo" / "copy"
    folder.mkdir(parents=True)
    (folder / "stage.py").write_text(STAGE)
    (folder / "eager.py").write_text('"""Clone."""\nREQUIRES = ("torch",)\ndef copy(x): return x.clone()\n')
    return tmp_path / "kernels"


def test_this_workspace_has_the_papers_stages_and_every_toolkit():
    catalogue = discover(ROOT / "kernels")
    stages = {"project", "activate", "sinkhorn", "pre", "post_res", "residual"}
    assert {name.removeprefix("mhc/") for name in catalogue.stages} >= stages
    for name in stages:
        stage = catalogue.stage(f"mhc/{name}")
        wanted = {"eager", "compiled"} | (set() if name == "residual" else {"triton", "tilelang"})
        assert wanted <= {i.toolkit for i in stage.implementations}
        assert stage.wrong
        for implementation in (*stage.implementations, *stage.wrong):
            assert implementation.problem is None
            assert implementation.caption.endswith((".", ":"))


def test_planning_imports_no_implementation(kernels):
    (kernels / "demo" / "copy" / "eager_bomb.py").write_text("raise SystemExit('imported')\ndef copy(x): return x\n")
    assert "demo/copy/eager_bomb" in {i.name for i in discover(kernels).implementations()}


def test_names_come_from_paths_whatever_they_hold(kernels):
    odd = ["with space", "ünïcode", "semi;colon", "x" * 240]
    for name in odd:
        (kernels / "demo" / "copy" / f"{name}.py").write_text("def copy(x): return x\n")
    names = {i.stem for i in discover(kernels).implementations()}
    assert names == {"eager", *odd}
    for implementation in discover(kernels).implementations():
        assert callable(load_module(implementation.path).copy)


def test_files_are_loaded_under_a_private_name(kernels):
    module = load_module(kernels / "demo" / "copy" / "eager.py")
    assert module.__name__.startswith("_perflab_")
    assert "kernels" not in sys.modules or str(kernels) not in str(sys.modules["kernels"].__path__)


def test_two_workspaces_do_not_share_modules(kernels, tmp_path):
    other = tmp_path / "other" / "kernels" / "demo" / "copy"
    other.mkdir(parents=True)
    (other / "eager.py").write_text("def copy(x): return 'other'\n")
    assert load_module(other / "eager.py").copy(0) == "other"
    assert load_module(kernels / "demo" / "copy" / "eager.py").__name__ != load_module(other / "eager.py").__name__


def test_a_file_from_elsewhere_joins_the_stage_whose_function_it_defines(kernels, tmp_path):
    mine = tmp_path / "triton_mine.py"
    mine.write_text('"""Mine."""\ndef copy(x): return x\n')
    found = discover(kernels, [mine]).implementation("demo/copy/triton_mine")
    assert (found.toolkit, found.caption, found.path) == ("triton", "Mine.", mine)


def test_a_folder_from_elsewhere_adds_all_its_files(kernels, tmp_path):
    folder = tmp_path / "mine" / "copy"
    folder.mkdir(parents=True)
    (folder / "eager_a.py").write_text("def copy(x): return x\n")
    (folder / "eager_b.py").write_text("def copy(x) return x\n")
    catalogue = discover(kernels, [tmp_path / "mine"])
    assert catalogue.implementation("demo/copy/eager_a").problem is None
    assert "line 1" in catalogue.implementation("demo/copy/eager_b").problem


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("eager.py", "def copy(x): return x\n", "exists already"),
        ("mine.py", "def paste(x): return x\n", "defines no stage's function"),
    ],
)
def test_a_file_that_cannot_join_is_told(kernels, tmp_path, name, text, told):
    (tmp_path / name).write_text(text)
    with pytest.raises(PerflabError, match=told):
        discover(kernels, [tmp_path / name])


def test_a_missing_path_and_an_empty_folder_are_told(kernels, tmp_path):
    with pytest.raises(PerflabError, match="no such file"):
        discover(kernels, [tmp_path / "gone.py"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(PerflabError, match="holds no Python file"):
        discover(kernels, [tmp_path / "empty"])


def test_the_toolkit_is_the_prefix_or_what_the_file_requires(kernels):
    folder = kernels / "demo" / "copy"
    (folder / "fast.py").write_text('REQUIRES = ("torch", "triton")\ndef copy(x): return x\n')
    (folder / "plain.py").write_text("def copy(x): return x\n")
    catalogue = discover(kernels)
    assert catalogue.implementation("demo/copy/fast").toolkit == "triton"
    assert catalogue.implementation("demo/copy/plain").toolkit == "eager"


@pytest.mark.parametrize(
    ("text", "told"), [("STAGE = 3\n", r"must be a perflab\.Stage"), ("import no_such_module\n", "no_such_module")]
)
def test_a_broken_stage_is_told_when_its_contract_is_needed(kernels, text, told):
    (kernels / "demo" / "copy" / "stage.py").write_text(text)
    with pytest.raises(PerflabError, match=told):
        _ = discover(kernels).stage("demo/copy").contract
