"""Counts of interpreted Triton kernels against bytes worked out by hand.

The kernels are in interpreted_cases.py, which runs once, in a process of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def answer():
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-W", "error", Path(__file__).with_name("interpreted_cases.py")],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def counts(answer):
    return answer["counts"]


def _totals(traffic):
    return traffic["read_bytes"], traffic["write_bytes"], traffic["launches"]


def _tensor(traffic, name):
    row = traffic["detail"]["tensors"][name]
    return tuple(row[key] for key in ("read_bytes", "write_bytes", "distinct_read_bytes", "distinct_write_bytes"))


def test_everything_patched_is_restored(answer):
    assert answer["restored"] is True


@pytest.mark.parametrize(("dtype", "item"), [("bfloat16", 2), ("float32", 4), ("float64", 8), ("int8", 1)])
def test_a_masked_tail_in_several_dtypes(counts, dtype, item):
    traffic = counts[f"copy_{dtype}"]
    size, sectors = 1000 * item, -(-1000 * item // 32) * 32
    assert traffic["source"] == "interpreted" and traffic["collector"] == f"triton {triton.__version__} interpreter"
    assert _totals(traffic) == (size, size, 1)
    assert _tensor(traffic, "x") == (size, 0, size, 0)
    assert _tensor(traffic, "y") == (0, size, 0, size)
    detail = traffic["detail"]
    assert (detail["sector_read_bytes"], detail["sector_write_bytes"]) == (sectors, sectors)
    assert (detail["programs"], detail["programs_run"], detail["sampled"]) == (8, 8, False)
    assert detail["kernels"]["copy"]["launches"] == 1


def test_an_input_read_twice_is_requested_twice_and_distinct_once(counts):
    assert _tensor(counts["twice"], "x") == (2 * 8 * 64 * 4, 0, 8 * 64 * 4, 0)
    assert _totals(counts["twice"]) == (2 * 8 * 64 * 4, 8 * 64 * 4, 1)


def test_names_of_the_caller_hold_for_views(counts):
    half = 4 * 64 * 4
    assert _tensor(counts["named"], "input") == (2 * half, 0, half, 0)
    assert _tensor(counts["named"], "result") == (0, half, 0, half)


def test_one_tensor_given_twice_has_one_entry(counts):
    size = 8 * 64 * 4
    assert counts["in_place"]["detail"]["tensors"].keys() == {"x+y"}
    assert _tensor(counts["in_place"], "x+y") == (2 * size, size, size, size)


@pytest.mark.parametrize("case", ["grid_2d", "folded"])
def test_a_grid_of_tiles(counts, case):
    T, C = 37, 70
    traffic = counts[case]
    assert _tensor(traffic, "x") == (T * C * 4, 0, T * C * 4, 0)
    assert _tensor(traffic, "row") == (10 * C * 4, 0, C * 4, 0)  # once for each of ten blocks of rows
    assert _tensor(traffic, "y") == (0, T * C * 4, 0, T * C * 4)


@pytest.mark.parametrize(
    ("sample", "full", "run"), [("copy_sampled", "copy_float32", 4), ("grid_2d_sampled", "grid_2d", 18)]
)
def test_a_sample_equals_the_full_count(counts, sample, full, run):
    sampled, complete = counts[sample], counts[full]
    assert _totals(sampled) == _totals(complete)
    assert (sampled["detail"]["sampled"], sampled["detail"]["programs_run"]) == (True, run)
    assert sampled["detail"]["programs"] == complete["detail"]["programs"]
    for name, row in complete["detail"]["tensors"].items():
        without_distinct = {key: row[key] for key in ("read_bytes", "write_bytes")}
        assert sampled["detail"]["tensors"][name] == without_distinct
    for key in ("sector_read_bytes", "sector_write_bytes"):
        assert sampled["detail"][key] == complete["detail"][key]


def test_a_large_launch_is_counted_at_its_true_shape(counts):
    size = (128 * 16384 - 5) * 2
    assert _totals(counts["large_sampled"]) == (size, size, 1)
    assert counts["large_sampled"]["detail"]["programs"] == 16384
    assert counts["large_sampled"]["detail"]["programs_run"] == 32


def test_programs_that_differ_are_refused_with_a_sentence(counts):
    for case, kernel in (("grid_stride_odd", "grid_stride"), ("folded_sampled", "add_row_folded")):
        sentence = counts[case]["not_uniform"]
        assert f"kernel {kernel}" in sentence and "B of x" in sentence and "program (" in sentence


def test_uniform_strides_and_folds_are_not_refused(counts):
    assert _totals(counts["grid_stride_even"]) == (3200 * 4, 3200 * 4, 1)
    assert _totals(counts["folded_even_sampled"]) == ((40 * 64 + 10 * 64) * 4, 40 * 64 * 4, 1)


def test_several_launches_and_the_tensor_operations_between(counts):
    traffic = counts["launches_and_tensor_ops"]
    size = 256 * 4
    # two copies by way of a workspace, then zeros(256) and sum() by PyTorch
    assert _totals(traffic) == (3 * size, 3 * size + 4, 4)
    assert traffic["detail"]["kernels"]["copy"]["read_bytes"] == 2 * size
    assert traffic["detail"]["tensor_ops"].keys() == {"aten.zeros.default", "aten.sum.default"}


def test_atomics_read_and_write(counts):
    assert _tensor(counts["atomics"], "x") == (400, 0, 400, 0)
    assert _tensor(counts["atomics"], "bins") == (400, 400, 16, 16)
    assert _tensor(counts["compare_and_swap"], "lock") == (12, 12, 4, 4)


def test_tensor_descriptors(counts):
    assert _tensor(counts["descriptor"], "x") == (800, 0, 800, 0)  # 10 x 20, out of tiles that cover 16 x 32
    assert _tensor(counts["descriptor"], "y") == (0, 800, 0, 800)
    assert _tensor(counts["host_descriptor"], "source") == (256, 0, 256, 0)


def test_a_column_touches_a_sector_per_row(counts):
    assert _tensor(counts["column"], "x") == (64 * 4, 0, 64 * 4, 0)
    assert counts["column"]["detail"]["sector_read_bytes"] == 64 * 32
    assert counts["column"]["detail"]["sector_write_bytes"] == 64 * 4


def test_an_expanded_input_is_requested_by_every_lane_and_distinct_once(counts):
    assert _tensor(counts["expanded"], "x") == (64 * 4, 0, 4, 0)
    assert counts["expanded"]["detail"]["sector_read_bytes"] == 32


def test_matmul_requests_a_block_for_every_program_that_needs_it(counts):
    M, N, K, B = 64, 96, 32, 16
    assert _tensor(counts["matmul"], "a") == (M * K * 4 * (N // B), 0, M * K * 4, 0)
    assert _tensor(counts["matmul"], "b") == (K * N * 4 * (M // B), 0, K * N * 4, 0)
    assert _tensor(counts["matmul"], "c") == (0, M * N * 4, 0, M * N * 4)


def test_a_pointer_outside_every_argument(counts):
    tensors = counts["outside"]["detail"]["tensors"]
    assert tensors["(outside every argument)"] == {"read_bytes": 128, "write_bytes": 0}
    assert _totals(counts["outside"]) == (128 + 8, 128, 1)


def test_an_empty_grid_launches_nothing(counts):
    assert _totals(counts["nothing"]) == (0, 0, 0)


def test_a_count_within_a_count_is_refused(counts):
    assert "under way" in counts["nested"]["refused"]


def test_a_failing_call_leaves_the_counter_usable(counts):
    assert counts["after_a_failure"]["then"] == 4000
