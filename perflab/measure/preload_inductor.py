"""Imported by the server that workers are forked from: Inductor, and the instruction set that it finds by trying."""

import torch._inductor.compile_fx  # noqa: F401
from torch._inductor import cpu_vec_isa

# Inductor compiles and loads a probe per instruction set, in every process anew; forked workers inherit the answer.
if hasattr(cpu_vec_isa, "pick_vec_isa"):
    cpu_vec_isa.pick_vec_isa()
