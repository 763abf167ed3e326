"""No TileLang kernel spills, forward or backward, as nvcc sees it for Hopper."""

import functools

import pytest
import torch
from tilelang_cases import load, needs_nvcc

from perflab.measure.compile_report import compile_for

TABLE_5_C = (1280, 1920, 2560)
STAGES = {
    "activate": "tilelang_element_rows",
    "sinkhorn": "tilelang_thread_per_token",
    "pre": "tilelang_row_block",
    "post_res": "tilelang_row_block",
}


def empty(*shape, dtype=torch.float32):
    """A tensor whose memory nothing touches; on meta an operator would not reach its launches."""
    return torch.empty(shape, dtype=dtype)


def inputs(stage, n, C, dtype):
    """A stage's inputs, unwritten."""
    x, f, K = empty(256, n, C, dtype=dtype), empty(256, C, dtype=dtype), n * n + 2 * n
    return {
        "project": (x, empty(n * C, K)),
        "activate": (empty(256, K), empty(256), empty(3), empty(K)),
        "sinkhorn": (empty(256, n, n),),
        "pre": (x, empty(256, n)),
        "post_res": (x, f, empty(256, n), empty(256, n, n)),
    }[stage]


def forward_and_backward(stage, given):
    """Launches all kernels of a stage."""
    given = [tensor.requires_grad_() for tensor in given]
    outputs = getattr(load(f"mhc/{stage}/{STAGES[stage]}"), stage)(*given)
    outputs = (outputs,) if torch.is_tensor(outputs) else outputs
    torch.autograd.grad(outputs, given, [torch.empty_like(output) for output in outputs])


@needs_nvcc
@pytest.mark.parametrize("C", TABLE_5_C)
def test_the_projection_does_not_spill_at_the_shapes_of_table_5(C):
    project = load("mhc/project/tilelang_split_k").project
    reports = compile_for(functools.partial(project, *inputs("project", 4, C, torch.bfloat16)))
    # Two blocks of it share a multiprocessor's registers.
    assert reports and all(report.spill_bytes == 0 and report.registers <= 128 for report in reports)


@needs_nvcc
@pytest.mark.parametrize("C", TABLE_5_C)
@pytest.mark.parametrize("stage", list(STAGES))
def test_nothing_spills_at_the_shapes_of_table_5(stage, C):
    reports = compile_for(functools.partial(forward_and_backward, stage, inputs(stage, 4, C, torch.bfloat16)))
    assert {report.name.endswith("_backward_kernel") for report in reports} == {True, False}
    # Four blocks of 128 threads share a multiprocessor's registers.
    assert all(report.spill_bytes == 0 and report.registers <= 128 for report in reports)


@needs_nvcc
@pytest.mark.parametrize(("C", "dtype"), [(2560, torch.float32), (1920, torch.bfloat16)])
@pytest.mark.parametrize("n", [1, 2, 8])
@pytest.mark.parametrize("stage", list(STAGES))
def test_nothing_spills_with_other_numbers_of_streams(stage, n, C, dtype):
    reports = compile_for(functools.partial(forward_and_backward, stage, inputs(stage, n, C, dtype)))
    assert reports and all(report.spill_bytes == 0 for report in reports)
