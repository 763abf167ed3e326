"""The derived columns of a stack against numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made_records as made
import pytest

from perflab.analyse import derive
from perflab.catalogue import load_module
from perflab.present import table
from perflab.record import Memory, Record

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("table3_bytes", "coefficient_bytes", "beyond_table3", "eq20_bytes", "peak_beyond_eq20")
#: 10 tokens of 4 streams of 100; 12 sites in blocks of 5: three blocks.
SIZES = {"T": 10, "n": 4, "C": 100, "L": 12, "L_r": 5}


def stack(sizes: dict[str, int] | None = None, stem: str = "eager", **fields: Any) -> Record:
    """A made training step of a stack."""
    kept = Memory(saved_bytes=60_000, peak_bytes=200_000, source="allocator")
    return made.record(
        f"mhc/stack/{stem}", sizes or SIZES, **{"pass": "forward_backward", "memory": kept} | fields
    )  # fmt: skip


def columns(record: Record) -> dict[str, float | None]:
    """What the workspace's metrics say of one record."""
    (derived,) = derive.derive([record], made.about(), derive.metrics(ROOT / "dashboards"))
    return {name: derived[name] for name in NAMES}


def test_every_column_is_the_paper_s() -> None:
    assert columns(stack()) == {
        "table3_bytes": 2 * 10 * 100 * (4 * 2 + 12),
        "coefficient_bytes": 4 * 10 * 12 * 24,
        "beyond_table3": (60_000 - 40_000) / 120,
        "eq20_bytes": 2 * 10 * 100 * (4 * 3 + 6 * 5),
        "peak_beyond_eq20": 200_000 - 84_000,
    }


def test_elements_of_four_bytes_count_twice_and_coefficients_do_not() -> None:
    wide, narrow = columns(stack(dtype="fp32")), columns(stack())
    assert wide["table3_bytes"] == 2 * narrow["table3_bytes"]
    assert wide["eq20_bytes"] == 2 * narrow["eq20_bytes"]
    assert wide["coefficient_bytes"] == narrow["coefficient_bytes"]


def test_one_block_of_all_sites_keeps_f_s_outputs_alone() -> None:
    assert columns(stack(SIZES | {"L_r": 12}))["table3_bytes"] == 2 * 10 * 100 * 12


@pytest.mark.parametrize(
    "record",
    [
        made.record("mhc/pre/eager", memory=Memory(saved_bytes=1, peak_bytes=2, source="allocator")),
        stack(SIZES | {"L_r": 0}),
        stack(memory=None),
    ],
    ids=["another stage", "all kept", "not measured"],
)
def test_where_the_paper_says_nothing_there_is_nothing(record: Record) -> None:
    assert set(columns(record).values()) == {None}


def test_a_forward_keeps_nothing_and_half_a_step_has_another_peak() -> None:
    forward = columns(stack(**{"pass": "forward", "memory": Memory(peak_bytes=9, source="allocator")}))
    assert forward["table3_bytes"] is None and forward["peak_beyond_eq20"] is None
    assert columns(stack(**{"pass": "backward"}))["peak_beyond_eq20"] is None


def test_the_table_has_the_columns_for_stacks_alone() -> None:
    metrics = derive.metrics(ROOT / "dashboards")
    records = [stack(), made.record("mhc/pre/eager")]
    of_stack, of_pre = table.blocks(records, derive.derive(records, made.about(), metrics), metrics)
    cells = dict(zip(of_stack.header, of_stack.rows[0], strict=True))
    assert cells["Table 3"] == "40 kB" and cells["beyond Table 3, a token and site"] == "167 B"
    assert cells["Eq. 20"] == "84 kB" and cells["peak - Eq. 20"] == "116 kB"
    assert not {"Table 3", "Eq. 20"} & set(of_pre.header)


def test_the_kernels_best_block_is_where_the_metric_is_least() -> None:
    """Equation 20 stands twice: a metric is a file by itself."""
    best_block = load_module(ROOT / "kernels/mhc/equation20.py").best_block
    for n in (1, 2, 4, 8):
        for L in (1, 2, 12, 36, 60):
            counted = {
                block: columns(stack(SIZES | {"n": n, "L": L, "L_r": block}))["eq20_bytes"] for block in range(1, L + 1)
            }
            assert best_block(L, n) == min(counted, key=counted.__getitem__)
