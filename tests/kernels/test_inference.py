"""Decoding: the paper-and-pencil sizes of caches, experts met, and the sites' counted share."""

from __future__ import annotations

from pathlib import Path

import pytest

from perflab.catalogue import load_module

MHC = Path(__file__).resolve().parents[2] / "kernels" / "mhc"
INFERENCE, TRAFFIC = load_module(MHC / "inference.py"), load_module(MHC / "traffic.py")
PRESETS = load_module(MHC / "model" / "presets.py").presets()


@pytest.mark.parametrize("context, gibibytes", [(8 * 1024, 4), (128 * 1024, 64)])
def test_the_quoted_sizes_of_caches(context: int, gibibytes: int) -> None:
    size = INFERENCE.cache_bytes(INFERENCE.multi_head(32, 128), layers=32, context=context)
    assert size == gibibytes * 2**30 == 2 * 32 * context * 4096 * 2
    assert INFERENCE.cache_bytes(INFERENCE.multi_head(32, 128), 32, context, batch=7) == 7 * size
    assert INFERENCE.cache_bytes(INFERENCE.multi_head(8, 128), 32, context) == size // 4


def test_mla_caches_one_compressed_vector_for_all_heads() -> None:
    preset = PRESETS["27b"]
    assert INFERENCE.latent(preset.kv_rank, preset.rope) == 576
    assert INFERENCE.multi_head(preset.heads, preset.head_dim) == 8192


@pytest.mark.parametrize("name", ["elements", "layers", "context", "batch"])
def test_negative_sizes_are_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: expected at least 0, got -1"):
        INFERENCE.cache_bytes(**({"elements": 1, "layers": 1, "context": 1, "batch": 1} | {name: -1}))


def test_a_batch_meets_more_experts_and_never_more_than_there_are() -> None:
    assert INFERENCE.experts_met(72, 6, 1) == pytest.approx(6)
    assert INFERENCE.experts_met(72, 6, 2) == pytest.approx(72 - 66 * 66 / 72)
    assert 71.9 < INFERENCE.experts_met(72, 6, 256) < 72


@pytest.mark.parametrize("name", ["3b", "9b", "27b"])
def test_one_sequence_reads_the_active_weights(name: str) -> None:
    preset = PRESETS[name]
    step = INFERENCE.decode(preset, 1, 0)
    assert step.shared + step.experts == pytest.approx(2 * preset.active_parameters())
    assert step.cache == 0


@pytest.mark.parametrize("name", ["3b", "9b", "27b"])
def test_the_sites_bytes_are_counted_and_at_least_their_weights(name: str) -> None:
    preset = PRESETS[name]
    batches = TRAFFIC.Decoding(preset.C).batches()
    assert batches == [1, 4, 16, 64, 256]
    steps = [INFERENCE.decode(preset, batch, 4096) for batch in batches]
    streams = preset.sites * 2 * preset.C * (4 + 4)  # x is read by the write, y is written; the read reads x besides
    for batch, step in zip(batches, steps, strict=True):
        phi = preset.sites * 4 * preset.C * 24 * 4
        assert step.sites > phi + batch * streams
        assert 0 < step.share < 1 and step.plain == preset.sites * batch * 6 * preset.C
        assert step.launches % preset.sites == 0 and step.launches > 0
    assert [step.sites for step in steps] == sorted(step.sites for step in steps)


def test_a_batch_that_was_not_counted_is_refused() -> None:
    with pytest.raises(ValueError, match=r"3 tokens: not counted; counted are \[1, 4, 16, 64, 256\]"):
        INFERENCE.decode(PRESETS["27b"], 3, 4096)
