"""What the interpreted tests share: the implementations of a stage, and bounds on errors against fp64."""

from pathlib import Path

import pytest
import torch
from gradient_cases import (
    assert_backward_in_every_setting,
    assert_same,
    assert_tokens_apart,
    cotangents_of,
    gradients,
    normal,
    reference_gradients,
)

from perflab.catalogue import load_module

__all__ = [
    "DTYPES",
    "STREAM_BOUNDS",
    "assert_backward_in_every_setting",
    "assert_near",
    "assert_same",
    "assert_tokens_apart",
    "cotangents_of",
    "gradients",
    "implementations",
    "normal",
    "reference_gradients",
]

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
#: Bounds on the relative l2 error and on |out - ref| / (|ref| + rms(ref)), of results rounded to the stream dtype.
STREAM_BOUNDS = {"bf16": (2e-3, 4e-3), "fp16": (3e-4, 5e-4), "fp32": (1e-6, 2e-6)}
STAGES = Path(__file__).parents[3] / "kernels" / "mhc"


def implementations(stage):
    """Every Triton implementation of a stage, as test parameters."""
    return [pytest.param(_load(path, stage), id=path.stem) for path in sorted((STAGES / stage).glob("triton_*.py"))]


def _load(path, stage):
    return getattr(load_module(path), stage)


def assert_near(out, ref, relative_l2, elementwise):
    """Shape equal, and both errors against the fp64 reference within bounds; NaN is never near."""
    assert out.shape == ref.shape
    if ref.numel() == 0:
        return
    difference = out.double() - ref
    l2 = (difference.norm() / ref.norm()).item()
    worst = (difference.abs() / (ref.abs() + ref.square().mean().sqrt())).max().item()
    assert l2 <= relative_l2 and worst <= elementwise, f"relative l2 {l2:.2e}, elementwise {worst:.2e}"
