"""Suites: what is accepted, and how a mistake is told."""

import pytest

from perflab import suite as suites
from perflab.errors import PerflabError
from tests.conftest import ROOT

GOOD = 'question = "?"\n[[group]]\nshape = { T = [1, 2], n = 4 }\n'


def load(tmp_path, text):
    (tmp_path / "mine.toml").write_text(text)
    return suites.load("mine", tmp_path)


def test_sizes_are_crossed(tmp_path):
    (group,) = load(tmp_path, GOOD).groups
    assert group.shapes() == [{"T": 1, "n": 4}, {"T": 2, "n": 4}]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("question = \n", "line 1"),
        ('question = "?"\n', "group: field required"),
        ('question = "?"\ngroup = []\n', "group: list should have at least 1 item"),
        ("[[group]]\nshape = { T = 1 }\n", "question: field required"),
        (GOOD + "speed = 3\n", "line 4: group.0.speed: no such field"),
        (GOOD + 'dtypes = ["int8"]\n', "line 4: group.0.dtypes.0: input should be 'bf16', 'fp16' or 'fp32'"),
        (GOOD + "[timing]\nhalf_width = 2\n", "line 5: timing.half_width: input should be less than 1"),
        (GOOD + "[[group]]\nshape = { T = 1 }\nspeed = 3\n", "line 6: group.1.speed: no such field"),
        ('question = "?"\n[[group]]\nshape = { T = "many" }\n', "group.0.shape.T"),
        ('question = "?"\n[[group]]\nshape = { T = -1 }\n', "expected a size of at least 0, got -1"),
        ('question = "?"\n[[group]]\nshape = { T = true }\n', "group.0.shape.T"),
        ("timeout_s = 0\n" + GOOD, "line 1: timeout_s: input should be greater than 0"),
    ],
)
def test_a_mistake_is_told_with_file_place_and_expectation(tmp_path, text, told):
    with pytest.raises(PerflabError) as error:
        load(tmp_path, text)
    assert "mine.toml" in str(error.value)
    assert told in str(error.value)


def test_bytes_that_are_no_text_are_told(tmp_path):
    (tmp_path / "mine.toml").write_bytes(b"question = '\xff'")
    with pytest.raises(PerflabError, match="broken TOML"):
        suites.load("mine", tmp_path)


def test_an_unknown_suite_suggests_near_ones(tmp_path):
    (tmp_path / "quick.toml").write_text(GOOD)
    with pytest.raises(PerflabError, match="did you mean quick"):
        suites.load("quik", tmp_path)


@pytest.mark.parametrize("name", suites.names(ROOT / "suites"))
def test_every_suite_here_loads_and_asks_a_question(name):
    assert suites.load(name, ROOT / "suites").question.endswith("?")
