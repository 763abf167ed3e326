"""These files need TRITON_INTERPRET=1 before Triton is imported; `test_triton_in_interpreter.py` runs them so."""

import os

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["test_*.py"]
else:
    import torch

    from perflab.measure.interpreter_bf16 import mend_bf16

    mend_bf16()
    torch.set_num_threads(1)

    @pytest.fixture(autouse=True)
    def unwritten_memory_is_nan(monkeypatch):
        """An output element that no kernel writes is NaN, and fails its comparison."""
        monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
        torch.use_deterministic_algorithms(True)
        yield
        torch.use_deterministic_algorithms(False)
