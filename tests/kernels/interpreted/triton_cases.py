"""What the interpreted tests share: the implementations of a stage, inputs, and comparison with fp64."""

import importlib.util
import warnings
from pathlib import Path

import pytest
import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
#: Bounds on the relative l2 error and on |out - ref| / (|ref| + rms(ref)), of results rounded to the stream dtype.
STREAM_BOUNDS = {"bf16": (2e-3, 4e-3), "fp16": (3e-4, 5e-4), "fp32": (1e-6, 2e-6)}
STAGES = Path(__file__).parents[3] / "kernels" / "mhc"


def implementations(stage):
    """Every Triton implementation of a stage, as test parameters."""
    return [pytest.param(_load(path, stage), id=path.stem) for path in sorted((STAGES / stage).glob("triton_*.py"))]


def _load(path, stage):
    spec = importlib.util.spec_from_file_location(f"{stage}_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, stage)


def normal(*shape, dtype=torch.float32, std=1.0, seed=0):
    """Normal values, the same on every run."""
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * std).to(dtype)


def assert_near(out, ref, relative_l2, elementwise):
    """Shape equal, and both errors against the fp64 reference within bounds; NaN is never near."""
    assert out.shape == ref.shape
    if ref.numel() == 0:
        return
    difference = out.double() - ref
    l2 = (difference.norm() / ref.norm()).item()
    worst = (difference.abs() / (ref.abs() + ref.square().mean().sqrt())).max().item()
    assert l2 <= relative_l2 and worst <= elementwise, f"relative l2 {l2:.2e}, elementwise {worst:.2e}"


def assert_same(first, second):
    """Bitwise equal results, single or several."""
    first, second = ((r,) if torch.is_tensor(r) else r for r in (first, second))
    for one, two in zip(first, second, strict=True):
        assert one.dtype == two.dtype
        assert one.shape == two.shape
        assert one.contiguous().view(torch.uint8).equal(two.contiguous().view(torch.uint8))


def assert_tokens_apart(function, inputs, poisoned):
    """A token of NaN and infinities in the inputs named by index changes no bit of another token's results."""
    token = 2
    before = function(*inputs)
    bad = [tensor.clone() for tensor in inputs]
    for index in poisoned:
        flat = bad[index][token].view(-1) if bad[index].dim() > 1 else bad[index][token : token + 1]
        flat.fill_(float("nan"))
        flat[::2] = float("inf")
    # The interpreter computes with NumPy, which would warn of the infinities that are meant here.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        after = function(*bad)
    before, after = ((r,) if torch.is_tensor(r) else r for r in (before, after))
    for clean, dirty in zip(before, after, strict=True):
        others = [t for t in range(len(clean)) if t != token]
        assert clean.isfinite().all()
        assert not dirty[token].isfinite().all()
        assert_same(clean[others], dirty[others])
