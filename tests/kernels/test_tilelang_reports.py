"""No TileLang kernel spills at the paper's shapes, as nvcc sees it for Hopper."""

import functools

import pytest
import torch
from tilelang_cases import load, needs_nvcc

from perflab.measure.compile_report import compile_for

TABLE_5_C = (1280, 1920, 2560)


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def calls(C):
    """Every TileLang stage at Table 5's n = 4, bf16."""
    x = meta(4096, 4, C, dtype=torch.bfloat16)
    f, h, M = meta(4096, C, dtype=torch.bfloat16), meta(4096, 4), meta(4096, 4, 4)
    return {
        "mhc/project/tilelang_split_k": (x, meta(4 * C, 24)),
        "mhc/activate/tilelang_element_rows": (meta(4096, 24), meta(4096), meta(3), meta(24)),
        "mhc/sinkhorn/tilelang_thread_per_token": (M,),
        "mhc/pre/tilelang_row_block": (x, h),
        "mhc/post_res/tilelang_row_block": (x, f, h, M),
    }


@needs_nvcc
@pytest.mark.parametrize("implementation", list(calls(1280)))
def test_nothing_spills_at_the_shapes_of_table_5(implementation):
    stage = getattr(load(implementation), implementation.split("/")[1])
    for C in TABLE_5_C:
        reports = compile_for(functools.partial(stage, *calls(C)[implementation]))
        assert reports and all(report.spill_bytes == 0 for report in reports)
        # Two blocks of the projection share a multiprocessor's registers, the others more.
        assert all(report.registers <= 128 for report in reports)
