"""Registers, spills and shared memory of TileLang kernels, from nvcc, with no GPU."""

import shutil
import stat
from pathlib import Path

import pytest
import tilelang.language as T
import torch

from perflab.measure import compile_report
from perflab.measure.compile_report import NvccMissing, compile_for
from perflab.measure.tile_kernel import alloc_shared, tile_kernel

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is missing: nothing can be compiled")


THREADS = 1024


@tile_kernel()
def centred(held):
    """Keeps `held` numbers a thread live across their sum, where 1024 threads leave each 64 registers."""
    rows = T.dynamic("rows", "int64")

    @T.prim_func
    def centred(x: T.Tensor((rows, held, THREADS), "float32"), y: T.Tensor((rows, held, THREADS), "float32")):
        with T.Kernel(rows, threads=THREADS) as row:
            values = T.alloc_fragment((held, THREADS), "float32")
            total = T.alloc_fragment((THREADS,), "float32")
            for i in T.unroll(held):
                for lane in T.Parallel(THREADS):
                    values[i, lane] = x[row, i, lane]
            for lane in T.Parallel(THREADS):
                total[lane] = 0
            for i in T.unroll(held):
                for lane in T.Parallel(THREADS):
                    total[lane] += values[i, lane]
            for i in T.unroll(held):
                for lane in T.Parallel(THREADS):
                    y[row, i, lane] = values[i, lane] - total[lane]

    return centred


@tile_kernel()
def reversed_row(C):
    rows = T.dynamic("rows", "int64")

    @T.prim_func
    def reversed_row(x: T.Tensor((rows, C), "float32"), y: T.Tensor((rows, C), "float32")):
        with T.Kernel(rows, threads=128) as row:
            tile = alloc_shared((C,), "float32")
            T.copy(x[row, 0], tile)
            for c in T.Parallel(C):
                y[row, c] = tile[C - 1 - c]

    return reversed_row


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


@needs_nvcc
def test_spills_are_seen():
    (small,) = compile_for(lambda: centred(8)(meta(2, 8, THREADS), meta(2, 8, THREADS)))
    (large,) = compile_for(lambda: centred(128)(meta(2, 128, THREADS), meta(2, 128, THREADS)))
    assert small.name == "centred_kernel"
    assert small.spill_bytes == 0 and 0 < small.registers <= 64
    assert large.spill_bytes > 0


@needs_nvcc
def test_dynamic_shared_memory_is_counted():
    (report,) = compile_for(lambda: reversed_row(512)(meta(2, 512), meta(2, 512)))
    assert report.shared_bytes == 512 * 4


@needs_nvcc
def test_nvcc_is_asked_once_per_source(tmp_path, monkeypatch):
    wrapper, log = tmp_path / "bin" / "nvcc", tmp_path / "log"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {shutil.which("nvcc")} "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(wrapper.parent), prepend=":")
    monkeypatch.setenv("PERFLAB_CACHE", str(tmp_path / "cache"))

    def compiles():
        compile_report._reports.cache_clear()
        report = compile_for(lambda: reversed_row(512)(meta(2, 512), meta(2, 512)))
        return report, log.read_text().count("-cubin")

    first, asked = compiles()
    assert asked == 1
    assert compiles() == (first, 1)
    assert len(list((tmp_path / "cache" / "nvcc").iterdir())) == 1


@needs_nvcc
def test_a_refused_source_shows_what_nvcc_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PERFLAB_CACHE", str(tmp_path))
    with pytest.raises(RuntimeError, match="undefined_name"):
        compile_report._ptxas('extern "C" __global__ void k(int* x) { *x = undefined_name; }', "sm_90a")
    assert not list(tmp_path.rglob("*.txt"))


def test_a_missing_nvcc_is_a_reason(monkeypatch):
    compile_report._reports.cache_clear()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    with pytest.raises(NvccMissing, match="install the CUDA toolkit"):
        compile_for(lambda: reversed_row(512)(meta(2, 512), meta(2, 512)))


def test_the_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("PERFLAB_CACHE", "/a/b")
    assert compile_report.cache_folder() == Path("/a/b")
    monkeypatch.delenv("PERFLAB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert compile_report.cache_folder() == Path("/c/perflab")
