"""Presets: parameters as the paper's table 5 counts them, without building a model."""

from pathlib import Path

import pytest

from perflab.catalogue import load_module

ROOT = Path(__file__).resolve().parents[2]
PRESETS = load_module(ROOT / "kernels" / "mhc" / "model" / "presets.py").presets()


def digits(number: float, count: int = 3) -> str:
    """The number to that many significant digits."""
    return f"{number:.{count}g}"


@pytest.mark.parametrize(
    "name, total, active, vocabulary",
    [("3b", "2.97e+09", "6.12e+08", "3.31e+08"), ("9b", "9.18e+09", "1.66e+09", "4.96e+08"), ("27b", "2.7e+10", "4.14e+09", "6.62e+08")],
)  # fmt: skip
def test_parameters_are_those_of_table_5(name, total, active, vocabulary):
    preset = PRESETS[name]
    assert digits(preset.parameters(n=4)) == total
    assert digits(preset.active_parameters(n=4)) == active
    assert digits(2 * preset.vocabulary * preset.C) == vocabulary


def test_a_slice_is_the_27b_model_with_fewer_layers():
    whole, part = PRESETS["27b"].shape(), PRESETS["27b_slice"].shape()
    assert {key for key in whole if whole[key] != part[key]} == {"layers", "B"}
