"""Runs on disk: whole lines, kept runs, hostile folders."""

import json
import os

import pytest

from perflab import store
from perflab.errors import PerflabError
from perflab.record import Reason, Record


def record(name="mhc/pre/eager", text="no package"):
    return Record(
        run_id="r", case_id=f"{name} T=1", stage="mhc/pre", implementation=name, toolkit="eager", pass_="forward",
        shape={"T": 1}, dtype="bf16", device="cpu", status="skipped", reason=Reason(code="missing_toolkit", text=text),
    )  # fmt: skip


def test_records_come_back_as_they_went(tmp_path):
    run = store.create(tmp_path / "new" / "results", "quick")
    odd = ["a b", "ünïcode \u2028 \x00", "x" * 300, 'quo"te\nnewline']
    for name in odd:
        run.append(record(name))
    assert [r.implementation for r in run.records()] == odd
    assert json.loads((run.folder / "records.jsonl").read_bytes().splitlines()[0])["pass"] == "forward"


@pytest.mark.parametrize("name", ["", "..", "a/b", "x" * 300, "ü ñ", "\n"])
def test_a_suite_of_any_name_gets_a_folder_below_local(tmp_path, name):
    run = store.create(tmp_path, name)
    assert run.folder.parent == tmp_path / "local"
    assert run.folder.is_dir()


def test_a_full_disk_leaves_no_half_line(tmp_path):
    """A file size limit makes the kernel cut a write short, as a full disk does."""
    import resource
    import signal

    run = store.create(tmp_path, "quick")
    run.append(record())
    size = (run.folder / "records.jsonl").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, before[1]))
        with pytest.raises(PerflabError, match="cannot write the record"):
            run.append(record(text="y" * 1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert (run.folder / "records.jsonl").stat().st_size == size
    run.append(record())
    assert len(run.records()) == 2


def test_an_unwritable_folder_is_told_before_measuring(tmp_path):
    blocker = tmp_path / "results"
    blocker.write_text("a file, not a folder")
    with pytest.raises(PerflabError, match="cannot be written"):
        store.create(blocker, "quick")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_told(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PerflabError, match="cannot be written"):
        store.create(tmp_path, "quick")


def test_runs_are_found_by_name_by_beginning_by_path_or_as_the_newest(tmp_path):
    first, second = store.create(tmp_path, "one"), store.create(tmp_path, "two")
    newest = sorted([first.id, second.id])[-1]
    assert store.find(tmp_path, None).id == newest
    assert store.find(tmp_path, first.id).folder == first.folder
    assert store.find(tmp_path, str(second.folder)).folder == second.folder
    with pytest.raises(PerflabError, match="unknown run"):
        store.find(tmp_path, "2")
    with pytest.raises(PerflabError, match="no runs"):
        store.find(tmp_path / "empty", None)


def test_keeping_moves_a_run_out_of_the_ignored_part_once(tmp_path):
    run = store.create(tmp_path, "quick")
    kept = store.keep(run, tmp_path)
    assert kept.folder == tmp_path / run.id
    assert store.find(tmp_path, run.id).folder == kept.folder
    with pytest.raises(PerflabError, match="kept already"):
        store.keep(kept, tmp_path)


@pytest.mark.parametrize("line", ["{", "[]", '{"run_id": "r"}', '{"unknown": 1}'])
def test_a_line_that_is_no_record_is_told_with_its_number(tmp_path, line):
    run = store.create(tmp_path, "quick")
    run.append(record())
    with (run.folder / "records.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(PerflabError, match="line 2"):
        run.records()


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00"])
def test_a_broken_run_json_is_told(tmp_path, text):
    run = store.create(tmp_path, "quick")
    (run.folder / "run.json").write_text(text)
    with pytest.raises(PerflabError, match=r"run\.json"):
        run.about()


def test_numbers_exist_exactly_when_passed():
    base = record().model_dump(by_alias=True)
    with pytest.raises(ValueError, match="needs its accuracy"):
        Record.model_validate(base | {"status": "passed", "reason": None})
    with pytest.raises(ValueError, match="a reason is given exactly"):
        Record.model_validate(base | {"reason": None})
    traffic = {"source": "dispatch", "read_bytes": 1, "write_bytes": 1, "launches": 1, "collector": "c"}
    with pytest.raises(ValueError, match="carries no measurements"):
        Record.model_validate(base | {"traffic": [traffic]})
    with pytest.raises(ValueError, match="extra"):
        Record.model_validate(base | {"speed": 3})
