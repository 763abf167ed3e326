"""Imported by the server that workers are forked from, so that each of them need not spend the seconds.

Toolkits are imported only where PERFLAB_PRELOAD names them, which a machine with a GPU never does: Inductor and
TileLang ask CUDA how it is when they are imported, and a process forked after that cannot use CUDA any more.
"""

import contextlib
import importlib
import os

import perflab.measure.session  # noqa: F401

MODULES = {"compiled": "torch._inductor.compile_fx", "triton": "triton.language", "tilelang": "tilelang"}

for toolkit in os.environ.get("PERFLAB_PRELOAD", "").split():
    # A toolkit that is missing or broken is told by the cases that need it.
    with contextlib.suppress(Exception):
        importlib.import_module(MODULES.get(toolkit, "perflab"))
        if toolkit == "compiled":
            # Inductor compiles and loads a probe per instruction set, in every process anew.
            importlib.import_module("torch._inductor.cpu_vec_isa").pick_vec_isa()
