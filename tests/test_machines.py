"""Machines: every number has a source; files of users, and this machine as runs measured it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from perflab import machine, machines
from perflab.errors import PerflabError
from tests.conftest import ROOT

QUOTED = [name for name in machines.names() if name != machines.HERE]


@pytest.mark.parametrize("name", QUOTED)
def test_a_quoted_machine_says_of_every_number_where_it_is_quoted_from(name: str, tmp_path: Path) -> None:
    loaded = machines.load(name, tmp_path)
    data = tomllib.loads((ROOT / "perflab" / "machines" / f"{name}.toml").read_text())
    numbers = [value for value in data.values() if isinstance(value, dict)]
    assert len(numbers) == 6 and all(one["source"].startswith("quoted, ") for one in numbers)
    assert not [key for key, value in data.items() if isinstance(value, int | float)]
    assert loaded.network is not None and loaded.nvlink is not None
    assert loaded.network.value < loaded.nvlink.value < loaded.bandwidth.value < loaded.peak.value


def test_the_machines_of_the_claim_are_there() -> None:
    assert QUOTED == ["b200", "h100", "h200", "h800"]


def test_a_machine_of_one_s_own_is_a_path(tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.write_text((ROOT / "perflab" / "machines" / "h100.toml").read_text().replace("3.35e12", "1e12"))
    assert machines.load(str(own), tmp_path).bandwidth.value == 1e12
    assert machines.load(str(own), tmp_path).name == "mine"


@pytest.mark.parametrize(
    "was, now, told",
    [
        ("3.35e12", "-1", "bandwidth.value: input should be greater than 0"),
        ("3.35e12", "inf", "bandwidth.value: input should be a finite number"),
        ('source = "quoted, NVIDIA H100 datasheet, SXM"', 'source = ""', "bandwidth.source"),
        ("about =", 'colour = "red"\nabout =', "colour: extra inputs are not permitted"),
        (
            '{ value = 3.35e12, source = "quoted, NVIDIA H100 datasheet, SXM" }',
            "7",
            "expected { value = NUMBER, source",
        ),
        ("dtype =", "dtype", "cannot be read as TOML"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_one_line(was: str, now: str, told: str, tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.write_text((ROOT / "perflab" / "machines" / "h100.toml").read_text().replace(was, now))
    with pytest.raises(PerflabError, match=r"mine\.toml: ") as refused:
        machines.load(str(own), tmp_path)
    assert told in str(refused.value)


def test_an_unknown_name_is_told_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(PerflabError, match=r"unknown machine 'h20': did you mean h200"):
        machines.load("h20", tmp_path)
    with pytest.raises(PerflabError, match="cannot be read"):
        machines.load(str(tmp_path / "none.toml"), tmp_path)


def write(results: Path, name: str, **fields: Any) -> None:
    """A run of this machine that measured its memory; `fields` replace any part."""
    about = {
        "run_id": name, "device": "cpu", "machine": machine.fingerprint(ROOT)["machine"] | {"gpus": []},
        "ceiling": [{"kernel": "copy", "working_set_bytes": 10**9, "outside_cache": True, "bandwidth": 2e10},
                    {"kernel": "copy", "working_set_bytes": 10**6, "outside_cache": False, "bandwidth": 9e10}],
        "compute": {"matmul": {"fp32": 5e10}, "launch_s": 2e-6}, "bystanders": 0.0,
    } | fields  # fmt: skip
    (results / name).mkdir(parents=True)
    (results / name / "run.json").write_text(json.dumps(about))


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without a GPU."""
    monkeypatch.setattr(machine, "gpus", list)


@pytest.mark.usefixtures("no_gpu")
def test_here_is_what_the_newest_run_on_this_machine_measured(tmp_path: Path) -> None:
    write(tmp_path, "20260101-a", compute={"matmul": {"fp32": 1e10}, "launch_s": 1e-6})
    write(tmp_path, "20260102-b")
    write(tmp_path, "20260103-elsewhere", machine={"cpu": "another", "cores": 2, "gpus": []})
    write(tmp_path, "20260104-nothing", ceiling=[])
    here = machines.load("here", tmp_path)
    assert (here.bandwidth.value, here.peak.value, here.launch.value) == (2e10, 5e10, 2e-6)
    assert here.bandwidth.source == "measured, run 20260102-b"
    assert here.dtype == "fp32" and here.network is None


@pytest.mark.usefixtures("no_gpu")
def test_here_takes_the_bandwidth_that_steps_have_with_the_product_rate_that_they_have(tmp_path: Path) -> None:
    write(tmp_path, "20260101-a", compute={"matmul": {"fp32": 1e10}, "launch_s": 1e-6, "bandwidth": 1e9, "threads": 1})
    here = machines.load("here", tmp_path)
    assert here.bandwidth.value == 1e9
    assert {one.source for one in (here.bandwidth, here.peak, here.launch)} == {
        "measured with 1 thread, run 20260101-a"
    }
    assert here.memory.source == "measured, run 20260101-a"


@pytest.mark.usefixtures("no_gpu")
def test_here_is_rather_an_older_run_that_nobody_disturbed(tmp_path: Path) -> None:
    write(tmp_path, "20260101-quiet", bystanders=0.02)
    write(tmp_path, "20260102-busy", bystanders=0.77)
    write(tmp_path, "20260103-unknown", bystanders=None)
    assert machines.load("here", tmp_path).peak.source == "measured, run 20260101-quiet"
    write(tmp_path / "only", "20260102-busy", bystanders=0.77)
    told = machines.load("here", tmp_path / "only").peak.source
    assert told == "measured while other programs used 77% of the processors, run 20260102-busy"
    write(tmp_path / "alone", "20260103-unknown", bystanders=None)
    told = machines.load("here", tmp_path / "alone").peak.source
    assert told == "measured, not looked whether other programs ran, run 20260103-unknown"


@pytest.mark.usefixtures("no_gpu")
def test_here_says_what_was_not_measured_and_takes_it_from_the_user(tmp_path: Path) -> None:
    with pytest.raises(PerflabError, match="measured this machine's memory"):
        machines.load("here", tmp_path)
    write(tmp_path, "20260101-old")
    path = tmp_path / "20260101-old" / "run.json"
    about = json.loads(path.read_text())
    del about["compute"]
    path.write_text(json.dumps(about))
    with pytest.raises(PerflabError, match=r"no launch and no peak .* --assume launch=SECONDS and --peak FLOP/S"):
        machines.load("here", tmp_path)
    with pytest.raises(PerflabError, match=r"no launch of"):
        machines.load("here", tmp_path, {"peak": 1e11})
    here = machines.load("here", tmp_path, {"peak": 1e11, "launch": 1e-6})
    assert (here.peak.value, here.peak.source) == (1e11, "given")


def test_a_cache_too_large_to_measure_memory_beside_it_leaves_no_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    from perflab.measure import ceiling

    monkeypatch.setattr(ceiling, "MAX_BYTES", 2**22)
    found = ceiling.compute("cpu", 2**22)
    assert found["bandwidth"] is None and found["matmul"]["fp32"] > 0
    assert ceiling.compute("cpu", 2**20)["bandwidth"] > 0
