"""The pages of a run: charts found by path, drawn from records alone, in a folder that opens offline."""

from __future__ import annotations

import importlib.util
import re
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pandas
import plotly.graph_objects as go
from markupsafe import Markup

from perflab import store
from perflab.analyse import derive
from perflab.catalogue import load_module
from perflab.errors import PerflabError, one_line
from perflab.present import about as about_run
from perflab.present import formats, panels, table
from perflab.record import Record
from perflab.workspace import Workspace, builtin_root

TEMPLATE, INDEX, PLOTLY = "page.html.j2", "index.html", "plotly.min.js"
#: The page of charts that name none, and the file that lists the others.
RUN, PAGES = "Run", "pages.toml"
#: Files that the page needs besides plotly, copied as they are.
ASSETS = ("perflab.css", "perflab.js")
#: How the builder knows its own page again; everything else in the folder is somebody's.
GENERATOR = '<meta name="generator" content="perflab">'


@dataclass(frozen=True)
class Chart:
    """One chart file: its name, its docstring and its function of that name.

    caption   the docstring's first line
    reading   the rest of it: how to read the chart, shown above it
    function  (frame, about) -> figure, where the frame holds a row per record (`perflab.present.formats.frame`);
              None says that the run has nothing for this chart, which the page then leaves out
    """

    name: str
    caption: str
    reading: str
    path: Path
    order: int
    function: Callable[[pandas.DataFrame, dict[str, Any]], go.Figure | None]
    page: str = RUN


@dataclass(frozen=True)
class Drawn:
    """A chart as the page holds it."""

    name: str
    caption: str
    reading: str
    height: int
    figure: Markup
    notes: list[str]
    page: str = RUN


@dataclass(frozen=True)
class Page:
    """One page: its name, the question it answers, its charts, and its file."""

    name: str
    question: str
    charts: list[Drawn]

    @property
    def chooses(self) -> bool:
        """Whether some chart shows one group at a time."""
        return any('"group":' in chart.figure for chart in self.charts)

    @property
    def file(self) -> str:
        """The run's own page is the folder's index."""
        return INDEX if self.name == RUN else re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-") + ".html"


def charts(dashboards: Path) -> list[Chart]:
    """Every chart in `dashboards`, by their ORDER and then by name.

    Fails: PerflabError for a file that cannot be loaded or lacks its caption or its function.
    """
    files = [path for path in sorted(dashboards.glob("*.py")) if not path.name.startswith("_")]
    return sorted((_load(path) for path in files), key=lambda chart: (chart.order, chart.name))


def build(run: store.Run, place: Workspace, out: Path) -> Path:
    """Write the run's pages into `out`, over earlier ones but over nothing else. Gives the path of index.html.

    Fails: PerflabError if the run has no records, `out` cannot be written or holds what is not ours, or a chart fails.
    """
    records, about = derive.in_order(run.records()), run.about()
    if not records:
        raise PerflabError(f"{run.id} holds no records, so there is nothing to draw")
    metrics = derive.metrics(place.dashboards)
    derived = derive.derive(records, about, metrics)
    frame = formats.frame(records, derived)
    drawn = [one for chart in charts(place.dashboards) if (one := _draw(chart, frame, about))]
    content = _content(records, about, table.blocks(records, derived, metrics))
    pages = _pages(drawn, content["question"], place)
    files = {page.file: _render(place, content | {"page": page, "pages": pages}).encode() for page in reversed(pages)}
    files = {PLOTLY: _plotly()} | {name: _asset(place, name).encode() for name in ASSETS} | files
    _check_folder(out, files)
    _write(out, files)
    return out / INDEX


def _pages(drawn: list[Drawn], question: str, place: Workspace) -> list[Page]:
    """The run's page first, then those that have a chart: as pages.toml has them, then by name."""
    questions = {RUN: question}
    if place.dashboards.joinpath(PAGES).is_file():
        listed = tomllib.loads(place.dashboards.joinpath(PAGES).read_text(encoding="utf-8"))
        questions |= {page["name"]: page["question"] for page in listed["page"]}
    names = [*questions, *sorted({one.page for one in drawn} - questions.keys())]
    pages = [Page(name, questions.get(name, name), [one for one in drawn if one.page == name]) for name in names]
    return [page for page in pages if page.charts or page.name == RUN]


def _load(path: Path) -> Chart:
    try:
        module = load_module(path)
        caption, _, reading = (module.__doc__ or "").strip().partition("\n")
        function = getattr(module, path.stem, None)
    except Exception as error:
        raise PerflabError(f"{path}: {one_line(error)}") from error
    if not caption:
        raise PerflabError(f"{path}: has no docstring; its first line is the chart's caption")
    if not callable(function):
        raise PerflabError(f"{path}: defines no function named {path.stem!r}")
    order, page = getattr(module, "ORDER", 100), getattr(module, "PAGE", RUN)
    return Chart(path.stem, caption, " ".join(reading.split()), path, order, function, page)


def _draw(chart: Chart, frame: pandas.DataFrame, about: dict[str, Any]) -> Drawn | None:
    try:
        figure = chart.function(frame.copy(), about)
        if figure is None:
            return None
        if not isinstance(figure, go.Figure):
            raise TypeError(f"{chart.name} gave {type(figure).__name__}, not a plotly figure")
        # Inside a script element nothing may look like its end; JSON may write < and > as escapes.
        text = figure.to_json().replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((f", line {f.lineno}" for f in reversed(frames) if f.filename == str(chart.path.resolve())), "")
        raise PerflabError(f"{chart.path}{line}: {one_line(error)}") from error
    notes = (figure.layout.meta or {}).get("notes", [])
    height = int(figure.layout.height or 450)
    return Drawn(chart.name, chart.caption, chart.reading, height, Markup(text), list(notes), chart.page)


def _content(records: list[Record], about: dict[str, Any], blocks: list[table.Block]) -> dict[str, Any]:
    """What the template shows besides the charts."""
    parts = list(panels.groups(formats.frame(records, [{} for _ in records])))
    used = {traffic.source for record in records for traffic in record.traffic}
    by_stage: dict[str, list[tuple[panels.Group, table.Block]]] = {}
    for part, block in zip(parts, blocks, strict=True):
        by_stage.setdefault(part.stage, []).append((part, block))
    return {
        "about": about,
        "question": (about.get("suite") or {}).get("question") or "What does this run tell?",
        "facts": about_run.facts(about),
        "counts": Counter(record.status for record in records),
        "interrupted": about.get("interrupted", True),
        "choices": panels.choices(parts),
        "chosen": panels.default_choice(parts),
        "groups": [{"stage": part.stage, "group": part.keys} for part in parts],
        "stages": by_stage,
        "words": table.WORDS,
        "legend": table.legend(about, blocks),
        "toolkits": {name: colour for name, colour in panels.COLOURS.items() if name in {r.toolkit for r in records}},
        "sources": {name: told for name, told in panels.SOURCES.items() if name in used},
    }


def _render(place: Workspace, content: dict[str, Any]) -> str:
    folders = [place.dashboards, builtin_root() / "dashboards"]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    try:
        return environment.get_template(TEMPLATE).render(generator=Markup(GENERATOR), **content)
    except jinja2.TemplateError as error:
        raise PerflabError(f"{place.dashboards / TEMPLATE}: {one_line(error)}") from error


def _asset(place: Workspace, name: str) -> str:
    """The workspace's own file, else the built-in one."""
    own = place.dashboards / name
    return (own if own.is_file() else builtin_root() / "dashboards" / name).read_text(encoding="utf-8")


def _plotly() -> bytes:
    """The script that belongs to the installed plotly, so that figures and script never differ in version."""
    spec = importlib.util.find_spec("plotly")
    assert spec and spec.origin
    return (Path(spec.origin).parent / "package_data" / PLOTLY).read_bytes()


def _check_folder(out: Path, files: Iterable[str]) -> None:
    """Refuse a folder with somebody else's content, or in the place of `files`. Fails: PerflabError."""
    if not out.is_dir():
        if out.exists():
            raise PerflabError(f"{out} is a file; choose a folder with --out")
        return
    ours = {*files, *(f"{name}.tmp" for name in files)}
    try:
        if foreign := next((p for p in out.glob("*.html") if p.name in files and not _is_ours(p)), None):
            raise PerflabError(f"{foreign} was not made by perflab and is left alone; choose another --out")
        strangers = sorted(path.name for path in out.iterdir() if path.name not in ours)
        if strangers and not (out / INDEX).exists():
            raise PerflabError(
                f"{out} holds {strangers[0]!r}, which is not perflab's; choose an empty folder with --out"
            )
    except OSError as error:
        raise PerflabError(f"{out}: cannot be read ({error.strerror}); choose another --out") from error


def _is_ours(page: Path) -> bool:
    return GENERATOR in page.read_text(encoding="utf-8", errors="replace")


def _write(out: Path, files: dict[str, bytes]) -> None:
    """Write each file in one step, the index last, after an earlier run's pages that this one does not have are gone.

    A link in the folder is replaced, never followed.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        for page in out.glob("*.html"):
            if page.name not in files and page.is_file() and _is_ours(page):
                page.unlink()
        for name, content in files.items():
            draft = out / f"{name}.tmp"
            draft.unlink(missing_ok=True)
            draft.write_bytes(content)
            draft.replace(out / name)
    except OSError as error:
        raise PerflabError(f"{out}: cannot be written ({error.strerror}); choose another --out") from error
