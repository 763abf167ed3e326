"""What the TileLang tests share: loading an implementation by path, errors against fp64, the accesses nvcc emits."""

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import pytest
import torch

from perflab.catalogue import load_module
from perflab.measure import compile_report

KERNELS = Path(__file__).parents[2] / "kernels"
#: Token counts around every block size in use; T is symbolic, so they all run one compiled kernel.
TOKENS = (0, 1, 3, 127, 129)
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is missing: nothing can be compiled")
RELATIVE_L2 = {torch.float32: 1e-6, torch.float16: 3e-4}


def load(path):
    """The module of an implementation such as "mhc/pre/tilelang_row_block"."""
    return load_module(KERNELS / f"{path}.py")


def relative_l2(out, reference):
    """||out - reference|| / ||reference||, in fp64; 0 for two empty tensors."""
    assert out.shape == reference.shape
    if out.numel() == 0:
        return 0.0
    return float((out.double() - reference).norm() / reference.norm())


def global_accesses(kernel):
    """How often each kind of global load and store stands in the PTX: (operation, bytes a thread) -> count.

    The CUDA source does not tell: nvcc may split a 16-byte access in it.
    """
    source, _ = compile_report.cuda_source(kernel)
    with tempfile.TemporaryDirectory() as folder:
        code, ptx = Path(folder) / "kernel.cu", Path(folder) / "kernel.ptx"
        code.write_text(source)
        includes = [f"-I{path}" for path in compile_report._includes()]
        arch = "-gencode=arch=compute_90a,code=compute_90a"
        subprocess.run(["nvcc", "-std=c++20", "-O3", arch, "-ptx", *includes, "-o", ptx, code], check=True)
        found = re.findall(r"(ld|st)\.global(?:\.nc)?(?:\.v(\d))?\.[fub](\d+)", ptx.read_text())
    return Counter((operation, int(lanes or 1) * int(bits) // 8) for operation, lanes, bits in found)
