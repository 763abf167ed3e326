"""What the TileLang tests share: loading an implementation by path, errors against fp64, unmistakable empty memory."""

import importlib.util
from pathlib import Path

import torch

KERNELS = Path(__file__).parents[2] / "kernels"
#: Token counts around every block size in use; T is symbolic, so they all run one compiled kernel.
TOKENS = (0, 1, 3, 127, 129)
RELATIVE_L2 = {torch.float32: 1e-6, torch.float16: 3e-4}


def load(path):
    """The module of an implementation such as "mhc/pre/tilelang_row_block"."""
    spec = importlib.util.spec_from_file_location(path.replace("/", "_"), KERNELS / f"{path}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def relative_l2(out, reference):
    """||out - reference|| / ||reference||, in fp64; 0 for two empty tensors."""
    assert out.shape == reference.shape
    if out.numel() == 0:
        return 0.0
    return float((out.double() - reference).norm() / reference.norm())
