"""The page's text, its folder, and the commands that make and serve it; no browser."""

from __future__ import annotations

import html
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import made_records as made
import pytest

from perflab import cli, store, workspace
from perflab.present import pages, panels
from perflab.present.formats import frame
from perflab.record import Record

ROOT = Path(__file__).resolve().parents[2]
FILES = {"index.html", "plotly.min.js", "perflab.css", "perflab.js"}
PERFLAB = [sys.executable, "-c", "from perflab.cli import main; main()"]


def build(folder: Path, records: list[Record], **about: object) -> str:
    """The page of one made run."""
    results = made.write(folder, records, **about)
    place = workspace.find(explicit=ROOT, results=results)
    return pages.build(store.find(results, None), place, folder / "site").read_text(encoding="utf-8")


def command(*arguments: object) -> int:
    """Exit code of a perflab command."""
    return cli._main([str(argument) for argument in arguments])


def text(page: str) -> str:
    """What a reader sees besides the charts: no scripts, no tags, single blanks."""
    bare = re.sub(r"<script.*?</script>", " ", page, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", bare)).split())


@pytest.fixture
def kinds(tmp_path: Path) -> str:
    return build(tmp_path, made.every_kind())


def test_says_what_was_measured_where_and_with_what(kinds: str) -> None:
    told = text(kinds)
    for fact in (made.RUN_ID, "suite made", "Does the page tell all that the records hold?", "Imagined CPU, 8 cores",
                 "torch 2.13.0", "not installed tilelang", "0123456789ab, with uncommitted changes",
                 "2026-01-01T00:00:00+00:00", "40 GB/s (triad of 1 GB, measured in this run)", "complete yes",
                 "5 passed", "1 wrong", "1 failed", "1 skipped"):  # fmt: skip
        assert fact in told
    assert "interrupted" not in told


def test_an_interrupted_run_says_so_and_how_to_finish_it(tmp_path: Path) -> None:
    told = text(build(tmp_path, made.every_kind(), interrupted=True))
    assert (
        f"This run was interrupted: cases are missing. Finish it with perflab run suite --resume {made.RUN_ID}" in told
    )


def test_a_run_that_stopped_before_it_saw_the_machine_has_a_page(tmp_path: Path) -> None:
    told = text(build(tmp_path, made.every_kind(), torch=None, ceiling=None, commit=None, end=None, libraries={}))
    assert "not in a git repository" in told
    assert "not measured outside the cache" in told


def test_every_case_is_named_with_its_status_and_every_reason_is_told(kinds: str) -> None:
    told = text(kinds)
    for record in made.every_kind():
        assert record.implementation.removeprefix("mhc/pre/") in told
        if record.reason:
            assert f"{record.status}: {record.reason.text} [{record.reason.code}]" in told, "under the charts"
            assert f": {record.reason.text} [{record.reason.code}]" in told.partition(" Table ")[2], "under the table"
    assert "bytes not counted: no schedule; none at all: mhc/pre/compiled_uncounted" in told
    assert "not timed: interpreted only: mhc/pre/triton_row" in told


def test_the_table_has_a_row_per_case_with_all_its_cells(kinds: str) -> None:
    rows = dict(re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', kinds, flags=re.S))
    assert len(rows) == len(made.every_kind())
    cells = [html.unescape(re.sub("<[^>]+>", "", cell)) for cell in re.findall(r"<td.*?</td>", rows["compiled"])]
    assert cells == [
        "passed",
        "1.7e-03",
        "32.8 MB",
        "1.25",
        "counter",
        "3",
        "1 ms ±15%",
        "26.2 GB/s [cache]",
        "1.00x",
    ]
    assert "compiled: traffic by compiler: 26.2 MB, 1.00 x fewest" in text(kinds), "no source hides another"
    assert "not counted" in rows["compiled_uncounted"]
    assert "(interpreted)" in rows["triton_row"]
    assert "no numbers; the reason is below" in rows["tilelang_tile"]


def test_names_are_text_whatever_they_hold(kinds: str) -> None:
    assert len(re.findall(r"<script(?![^>]*json)", kinds)) == 2, "plotly's and the page's own"
    assert not re.search(r"<script>", kinds)
    assert "<a href='" not in kinds
    told = text(kinds)
    assert made.HOSTILE in told
    assert made.LONG in told


def test_the_page_names_no_resource_outside_its_folder(kinds: str, tmp_path: Path) -> None:
    own = re.sub(r"<script type=.application/json.*?</script>", "", kinds, flags=re.S) + "".join(
        (tmp_path / "site" / name).read_text() for name in ("perflab.css", "perflab.js")
    )
    resources = re.findall(r"""(?:\bsrc|\bhref)\s*=\s*["']([^"']+)""", own)
    local = {name for name in resources if not name.startswith(("#", "data:"))}
    built = {path.name for path in (tmp_path / "site").iterdir()}
    assert local == built, "every file is used, and nothing else is"
    assert {name for name in built if not name.endswith(".html")} | {"index.html"} == FILES
    assert not re.findall(r"@import|url\(|\bfetch\(|import\(|XMLHttpRequest", own)


def test_building_loads_no_tensor_library(tmp_path: Path) -> None:
    results = made.write(tmp_path, made.every_kind())
    program = (
        "import sys; from perflab import cli; "
        f"code = cli._main(['dashboard', 'build', '--workspace', {str(ROOT)!r}, '--results', {str(results)!r}, "
        f"'--out', {str(tmp_path / 'site')!r}]); sys.exit(code or 10 * ('torch' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def test_charts_stand_in_their_order_then_by_name(tmp_path: Path) -> None:
    for name, order in (("b", "ORDER = 2"), ("a", ""), ("c", "ORDER = 1")):
        (tmp_path / f"{name}.py").write_text(
            f'"""Caption of {name}.\n\nHow to\nread it.\n"""\n{order}\ndef {name}(f, a): ...\n'
        )
    (tmp_path / "_helper.py").write_text("")
    found = pages.charts(tmp_path)
    assert [chart.name for chart in found] == ["c", "b", "a"]
    assert (found[0].caption, found[0].reading) == ("Caption of c.", "How to read it.")
    of_run = [chart.name for chart in pages.charts(ROOT / "dashboards") if chart.page == "Run"]
    assert of_run == ["traffic", "latency", "memory", "stability"]


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ('"""Caption."""', "defines no function named 'bad'"),
        ("def bad(frame, about): ...", "has no docstring"),
        ('"""Caption."""\nimport no_such_package', "ModuleNotFoundError"),
        ('"""Caption."""\n\ndef bad(frame, about):\n    return frame["none"]', "bad.py, line 4: KeyError"),
        ('"""Caption."""\ndef bad(frame, about):\n    return 1', "gave int, not a plotly figure"),
    ],
)
def test_a_broken_chart_is_one_line_that_names_the_file(
    source: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = made.write(tmp_path, made.every_kind())
    for folder in ("kernels", "suites", "dashboards"):
        (tmp_path / folder).mkdir()
    (tmp_path / "dashboards/bad.py").write_text(source)
    assert command("dashboard", "build", "--workspace", tmp_path, "--results", results, "--out", tmp_path / "site") == 2
    error = capsys.readouterr().err
    assert complaint in error and "dashboards/bad.py" in error and error.count("\n") == 1
    assert not (tmp_path / "site").exists()


def test_a_workspace_with_one_chart_of_its_own_has_a_page(tmp_path: Path) -> None:
    for folder in ("kernels", "suites", "dashboards"):
        (tmp_path / folder).mkdir()
    body = "import plotly.graph_objects as go\n\n\ndef own(frame, about):\n    return go.Figure(go.Bar(y=[7]))\n"
    (tmp_path / "dashboards/own.py").write_text('"""Mine."""\n' + body)
    results = made.write(tmp_path, made.every_kind())
    assert command("dashboard", "build", "--workspace", tmp_path, "--results", results, "--out", tmp_path / "site") == 0
    page = (tmp_path / "site/index.html").read_text(encoding="utf-8")
    assert re.findall(r'id="chart-(\w+)"', page) == ["own"]


def test_a_chart_that_gives_none_is_left_out_of_the_page_and_of_its_contents(tmp_path: Path) -> None:
    for folder in ("kernels", "suites", "dashboards"):
        (tmp_path / folder).mkdir()
    body = "import plotly.graph_objects as go\n\n\ndef {0}(frame, about):\n    return go.Figure() if {1} else None\n"
    for name, condition in (("kept", "len(frame) == 8"), ("left_out", "len(frame) == 9")):
        (tmp_path / f"dashboards/{name}.py").write_text('"""Mine."""\n' + body.format(name, condition))
    results = made.write(tmp_path, made.every_kind())
    assert command("dashboard", "build", "--workspace", tmp_path, "--results", results, "--out", tmp_path / "site") == 0
    page = (tmp_path / "site/index.html").read_text(encoding="utf-8")
    assert 'id="figure-kept"' in page and 'href="#chart-kept"' in page
    assert "left_out" not in page


@pytest.fixture
def paged(tmp_path: Path) -> Path:
    """A workspace with a chart on the run's page, one on a listed page and one on a page that is not listed."""
    for folder in ("kernels", "suites", "dashboards"):
        (tmp_path / folder).mkdir()
    body = '"""Mine."""\nimport plotly.graph_objects as go\n\nPAGE = "{1}"\n\n\ndef {0}(frame, about):\n    return go.Figure()\n'
    for name, page in (("first", "Run"), ("second", "Far & wide"), ("third", "Other")):
        (tmp_path / f"dashboards/{name}.py").write_text(body.format(name, page))
    (tmp_path / "dashboards/pages.toml").write_text(
        '[[page]]\nname = "Empty"\nquestion = "?"\n[[page]]\nname = "Far & wide"\nquestion = "How <far>?"\n'
    )
    made.write(tmp_path, made.every_kind())
    return tmp_path


def build_paged(folder: Path) -> int:
    return command(
        "dashboard", "build", "--workspace", folder, "--results", folder / "results", "--out", folder / "site"
    )


def test_charts_stand_on_the_pages_they_name_and_pages_without_any_are_not_written(paged: Path) -> None:
    assert build_paged(paged) == 0
    found = {path.name: path.read_text(encoding="utf-8") for path in (paged / "site").glob("*.html")}
    assert {name: re.findall(r'id="figure-(\w+)"', page) for name, page in found.items()} == {
        "index.html": ["first"], "far-wide.html": ["second"], "other.html": ["third"]
    }  # fmt: skip
    for page in found.values():
        links = re.findall(r'<a href="([\w-]+\.html)"', page)
        assert links == ["index.html", "far-wide.html", "other.html"]
        assert page.count('aria-current="page"') == 1
    assert "How &lt;far&gt;?" in found["far-wide.html"] and "<h1>Other</h1>" in found["other.html"]
    assert 'id="table"' in found["index.html"] and 'id="table"' not in found["other.html"]


def test_an_earlier_run_s_pages_go_and_somebody_else_s_stay(paged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build_paged(paged) == 0
    (paged / "site/mine.html").write_text("mine")
    (paged / "dashboards/third.py").unlink()
    assert build_paged(paged) == 0
    assert {path.name for path in (paged / "site").glob("*.html")} == {"index.html", "far-wide.html", "mine.html"}
    (paged / "site/far-wide.html").write_text("not perflab's")
    assert build_paged(paged) == 2
    assert "far-wide.html was not made by perflab" in capsys.readouterr().err
    assert (paged / "site/far-wide.html").read_text() == "not perflab's"


def test_the_page_is_built_again_over_itself_and_other_files_stay(tmp_path: Path) -> None:
    first = build(tmp_path, made.every_kind())
    (tmp_path / "site/mine.txt").write_text("keep")
    place = workspace.find(explicit=ROOT, results=tmp_path / "results")
    again = pages.build(store.find(place.results, None), place, tmp_path / "site").read_text(encoding="utf-8")
    assert again == first, "a page depends on its run alone"
    assert (tmp_path / "site/mine.txt").read_text() == "keep"


def test_a_link_in_the_folder_is_replaced_not_followed(tmp_path: Path) -> None:
    build(tmp_path, made.every_kind())
    outside = tmp_path / "outside.css"
    outside.write_text("keep")
    (tmp_path / "site/perflab.css").unlink()
    (tmp_path / "site/perflab.css").symlink_to(outside)
    place = workspace.find(explicit=ROOT, results=tmp_path / "results")
    pages.build(store.find(place.results, None), place, tmp_path / "site")
    assert outside.read_text() == "keep"
    assert not (tmp_path / "site/perflab.css").is_symlink()


def test_what_is_not_ours_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = made.write(tmp_path, made.every_kind())
    (tmp_path / "file").write_text("keep")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/notes.txt").write_text("keep")
    (tmp_path / "page").mkdir()
    (tmp_path / "page/index.html").write_text("keep")
    cases = {"file": "is a file", "foreign": "'notes.txt', which is not perflab's", "page": "was not made by perflab",
             "file/below": "cannot be written"}  # fmt: skip
    for out, complaint in cases.items():
        assert command("dashboard", "build", "--workspace", ROOT, "--results", results, "--out", tmp_path / out) == 2
        error = capsys.readouterr().err
        assert complaint in error and error.count("\n") == 1
    kept = [
        path.read_text() for path in (tmp_path / "file", tmp_path / "foreign/notes.txt", tmp_path / "page/index.html")
    ]
    assert kept == ["keep"] * 3
    assert [path.name for path in (tmp_path / "page").iterdir()] == ["index.html"]


def test_without_a_run_or_records_there_is_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "site"
    assert command("dashboard", "build", "--workspace", ROOT, "--results", tmp_path / "none", "--out", out) == 2
    assert "no runs in" in capsys.readouterr().err
    empty = made.write(tmp_path, [])
    assert command("dashboard", "build", "--workspace", ROOT, "--results", empty, "--out", out) == 2
    assert "holds no records" in capsys.readouterr().err
    assert not out.exists()


def test_build_prints_the_path_of_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = made.write(tmp_path, made.every_kind())
    monkeypatch.chdir(tmp_path)
    assert command("dashboard", "build", "--workspace", ROOT, "--results", results) == 0
    assert Path(capsys.readouterr().out.strip()) == Path("site/index.html")
    assert (tmp_path / "site/index.html").is_file()


def test_serve_gives_the_page_to_this_machine_until_interrupted(tmp_path: Path) -> None:
    page = build(tmp_path, made.every_kind())
    serving = [*PERFLAB, "dashboard", "serve", "--port", "0", "--out", str(tmp_path / "site")]
    with subprocess.Popen(serving, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout and server.stderr
        address = server.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=10) as answer:
            assert answer.read().decode() == page
        server.send_signal(signal.SIGINT)
        assert server.wait(10) == 0
        assert "Traceback" not in server.stderr.read()


def test_serve_says_why_it_cannot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("dashboard", "serve", "--out", tmp_path / "none") == 2
    assert "nothing is built here" in capsys.readouterr().err
    build(tmp_path, made.every_kind())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert command("dashboard", "serve", "--out", tmp_path / "site", "--port", port) == 2
    error = capsys.readouterr().err
    assert f"port {port} cannot be had" in error and error.count("\n") == 1


def test_selectors_offer_what_differs_and_start_with_the_largest(tmp_path: Path) -> None:
    records = [made.record(f"{stage}/eager", {"T": tokens, "n": 4} | ({"C": 2560} if stage == "a" else {}),
                           dtype="bf16" if stage == "a" else "fp32")
               for stage in ("a", "b") for tokens in (8192, 1024, 65536)]  # fmt: skip
    parts = list(panels.groups(frame(records, [{}] * len(records))))
    assert panels.choices(parts) == {"T": ["1024", "8192", "65536"]}, "dtype differs between stages, not within one"
    assert panels.default_choice(parts) == {"T": "65536"}
    shown = [(part.stage, part.keys["T"]) for part in parts if panels.matches(part, parts, {"T": "65536"})]
    assert shown == [("a", "65536"), ("b", "65536")]
    page = build(tmp_path, records)
    assert re.findall(r"<select name=\"(\w+)\">", page) == ["T"]
    assert "<option selected>65536</option>" in page


def test_a_chart_is_added_as_the_readme_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("kernels", "suites", "dashboards"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    readme = (ROOT / "dashboards/README.md").read_text(encoding="utf-8").partition("\n## Add a metric")[0]
    files = re.findall(r"```python\n# (\S+)\n(.*?)```", readme, flags=re.S)
    assert [name for name, _ in files] == ["dashboards/launches.py"]
    for name, source in files:
        (tmp_path / name).write_text(source)
    results = made.write(tmp_path / "made", made.every_kind())
    for line in re.findall(r"^\$ perflab (.*)$", readme, flags=re.M):
        places = ["--workspace", tmp_path]
        if line.startswith("dashboard"):
            places += ["--results", results, "--out", tmp_path / "site"]
        assert command(*line.split(), *places) == 0
    assert re.search(r"^launches +Kernels that one call launches\.$", capsys.readouterr().out, flags=re.M)
    page = (tmp_path / "site/index.html").read_text(encoding="utf-8")
    assert 'id="chart-launches"' in page and "3 dispatch" in page


def test_the_page_opens_on_the_kind_of_group_that_has_most_to_show() -> None:
    kits = ("eager", "compiled", "triton_a")
    records = [made.record(f"b/{kit}", {"T": 8, "n": 4}, dtype="fp32") for kit in kits]
    records += [made.record("a/tilelang_a", {"T": 8, "n": 4, "C": 4}, dtype="fp32")]
    records += [made.record(f"a/{kit}", {"T": 8, "n": 4, "C": 4}, dtype="bf16") for kit in kits]
    assert panels.default_choice(list(panels.groups(frame(records, [{}] * len(records))))) == {"dtype": "bf16"}
