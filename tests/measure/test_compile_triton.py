"""Compile reports of Triton kernels, made without a GPU."""

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from perflab.catalogue import load_module
from perflab.measure import inputs, passes
from perflab.measure.compile_triton import compile_for
from perflab.measure.passes import Work

STAGES = Path(__file__).parents[2] / "kernels" / "mhc"


@triton.jit
def _normalise(x, y, N: tl.constexpr):
    row = tl.program_id(0) * N + tl.arange(0, N)
    values = tl.load(x + row)
    tl.store(y + row, values / tl.sum(values, 0))


def load(path):
    """The implementation in a file."""
    return getattr(load_module(path), path.parent.name)


def normalise(device="cpu", size=4096, **options):
    """Each thread must hold its values across a sum: with one warp, size / 32 of them."""
    x, y = torch.empty(size, device=device), torch.empty(size, device=device)
    _normalise[(1,)](x, y, size, enable_fp_fusion=True, **options)
    return y


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_reports_one_kernel(device):
    (kernel,) = compile_for(lambda: normalise(device, num_warps=8))
    assert kernel.name == "_normalise"
    assert 16 <= kernel.registers <= 64
    assert kernel.spill_bytes == 0
    # Eight warps meet in shared memory, one float each.
    assert kernel.shared_bytes == 32


def test_sees_spills():
    (free,) = compile_for(lambda: normalise(num_warps=1))
    (squeezed,) = compile_for(lambda: normalise(num_warps=1, maxnreg=32))
    assert free.spill_bytes == 0
    assert free.registers > 128
    assert squeezed.registers <= 32
    # 128 values of 4 bytes in at most 32 registers.
    assert squeezed.spill_bytes >= (128 - 32) * 4


def test_distinct_kernels_in_order_of_launch():
    def call():
        for size in (1024, 256, 1024):
            normalise(size=size, num_warps=1)

    large, small = compile_for(call)
    assert large.registers > small.registers


def test_every_configuration_of_an_autotuned_kernel():
    configs = [triton.Config({}, num_warps=warps) for warps in (1, 8)]
    tuned = triton.autotune(configs, key=[])(_normalise)

    def call():
        x, y = torch.empty(4096), torch.empty(4096)
        tuned[(1,)](x, y, 4096, enable_fp_fusion=True)

    one_warp, eight_warps = compile_for(call)
    assert one_warp.registers > eight_warps.registers


def test_architectures_differ():
    """Tensor cores of sm_90 take their operands from shared memory, those of sm_80 from registers."""
    project = load(STAGES / "project" / "triton_split_k.py")
    stage = load_module(STAGES / "project" / "stage.py").STAGE
    given = inputs.empty(stage, {"T": 4096, "n": 4, "C": 2560}, "bf16", "cpu").values()
    hopper, ampere = (compile_for(lambda: project(*given), target)[0] for target in ("sm_90a", "sm_80"))
    assert hopper.registers != ampere.registers


def test_leaves_triton_as_it_was():
    run, active = JITFunction.run, driver._active

    def fails():
        normalise()
        raise KeyError("in the middle")

    compile_for(normalise)
    with pytest.raises(KeyError):
        compile_for(fails)
    assert JITFunction.run is run
    assert driver._active is active
    # What was compiled for an absent device is not what a real device would find.
    assert all(str(device).startswith("absent") for device in _normalise.device_caches)


@pytest.mark.parametrize("target", ["gfx942", "90", "sm_", "sm_90b"])
def test_refuses_other_targets(target):
    with pytest.raises(ValueError, match="sm_90a"):
        compile_for(normalise, target)


def test_refuses_to_compile_in_an_interpreting_process(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET"):
        compile_for(normalise)


#: Files with kernels of their own: those of site, stack and gain only put others together.
WITH_KERNELS = [p for p in sorted(STAGES.glob("*/triton_*.py")) if p.parent.name not in ("site", "stack", "gain")]


@pytest.mark.parametrize(
    ("n", "C", "dtype"), [(4, 1920, "bf16"), (4, 2560, "bf16"), (4, 2560, "fp32"), (8, 2560, "bf16")]
)
@pytest.mark.parametrize("path", WITH_KERNELS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_kernel_spills_forward_or_backward(path, n, C, dtype):
    stage = load_module(path.parent / "stage.py").STAGE
    shape = {dim: {"T": 4096, "n": n, "C": C, "L": 4}[dim] for dim in stage.dims}
    given, cotangents = inputs.empty(stage, shape, dtype, "cpu"), inputs.empty_cotangents(stage, shape, dtype, "cpu")
    passes.require_gradients(stage, given)
    pass_ = "forward_backward" if stage.differentiable else "forward"
    kernels = compile_for(Work(stage, load(path), pass_, shape, given, cotangents).call)
    assert len(kernels) >= (2 if stage.differentiable else 1)
    assert [kernel.name for kernel in kernels if kernel.spill_bytes] == []


def test_kernels_of_what_runs_before_are_not_reported():
    (only,) = compile_for(lambda: normalise(num_warps=8), prepare=lambda: normalise(num_warps=1))
    (same,) = compile_for(lambda: normalise(num_warps=8))
    assert only == same
