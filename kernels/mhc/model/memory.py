"""What a decoder needs in memory while it is trained, told before anything is allocated."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import torch

from perflab import Unsupported

from ..equation20 import best_block
from .decoder import Design
from .presets import Preset, presets

ITEM = {"fp32": 4, "bf16": 2}
#: Reads and writes that keep more than inputs and coefficients: by how many elements for each of the streams', as the
#: allocator tells of two CPU runs (`tests/kernels/test_model.py` holds it); in 16 bits mostly copies in fp32.
NOT_LEAN = {
    "hc": {"fp32": 1.2, "bf16": 7.6},
    "mhc eager": {"fp32": 0.2, "bf16": 5.7},
    "mhc compiled": {"fp32": 0.2, "bf16": 2.3},
}

#: The design that needs the least.
FRUGAL = Design("residual", recompute=True)


def sizes(shape: Mapping[str, int]) -> tuple[Preset, int]:
    """The decoder of a suite's shape, and its streams. Fails: ValueError for sizes that are missing or impossible."""
    names = [field.name for field in fields(Preset)]
    missing = [name for name in (*names, "n") if name not in shape]
    if missing:
        raise ValueError(f"shape: lacks {', '.join(missing)}; a step needs the sizes of a preset and n")
    small = [name for name in (*names, "n") if shape[name] < 1]
    if small:
        raise ValueError(f"shape: {small[0]} = {shape[small[0]]}; expected at least 1")
    if shape["active"] > shape["routed"]:
        raise ValueError(f"shape: active = {shape['active']}; expected at most routed = {shape['routed']}")
    if shape["rope"] % 2:
        raise ValueError(f"shape: rope = {shape['rope']}; expected an even number: it is turned in pairs")
    if shape["vocabulary"] < 256:
        raise ValueError(f"shape: vocabulary = {shape['vocabulary']}; expected at least 256: the text is bytes")
    return Preset(**{name: shape[name] for name in names}), shape["n"]


def needed_bytes(shape: Mapping[str, int], design: Design, dtype: str) -> int:
    """Bytes of weights, gradients and optimiser, and of what forward keeps for backward.

    Counted: inputs and outputs of each layer function's products, the site's streams (table 3 of arXiv 2512.24880 where
    they are rebuilt), and the head's logits, in fp32 thrice. An estimate: buffers of single operations are left out,
    and gradients are counted beside activations although the ones grow while the others go.
    """
    preset, n = sizes(shape)
    return preset.state_bytes(dtype, n if design.residual != "residual" else 0) + activation_bytes(shape, design, dtype)


def activation_bytes(shape: Mapping[str, int], design: Design, dtype: str) -> int:
    """What forward keeps for backward, with the head's logits."""
    p, n = sizes(shape)
    attention = 4 * p.heads * (p.head_dim + p.rope) + p.heads * p.head_dim + 2 * p.kv_rank + p.rope
    # gate and up, silu of gate, product; with experts the row too, and the product with its gate.
    dense = 4 * p.dense_ffn
    experts = 4 * p.shared * p.ffn + p.active * (p.C + 5 * p.ffn)
    functions = p.layers * attention + dense + (p.layers - 1) * experts
    kept = ITEM[dtype] * (functions + _site_elements(p, n, design, dtype))
    return p.tokens * (kept + (ITEM[dtype] + 12) * p.vocabulary)


def _site_elements(p: Preset, n: int, design: Design, dtype: str) -> int:
    """Elements a token that all sites keep, of streams, reads, norms and what layer functions gave."""
    plain = design.residual == "residual"
    streams = p.C if plain else n * p.C
    if design.recompute:
        block = best_block(p.sites, 1 if plain else n)
        return streams * -(-p.sites // block) + p.C * p.sites + block * (streams + 2 * p.C)
    # The plain residual's read is its stream, and its sum keeps nothing.
    site = 2 * p.C if plain else streams + 3 * p.C
    name = f"mhc {design.toolkit}" if design.residual == "mhc" else design.residual
    more = int(NOT_LEAN.get(name, {}).get(dtype, 0) * streams)
    # Sinkhorn's steps, in fp32: 20 times two matrices and their sums.
    steps = 40 * (n * n + n) * 4 // ITEM[dtype] if name == "mhc eager" else 0
    return p.sites * (site + more + steps)


def check_fits(shape: Mapping[str, int], dtype: str, available_bytes: int, design: Design = FRUGAL) -> None:
    """Fails: Unsupported, a ValueError, if the decoder needs more than there is: it names what fits."""
    needed = needed_bytes(shape, design, dtype)
    if needed <= available_bytes:
        return
    preset, n = sizes(shape)
    state = preset.state_bytes(dtype, n if design.residual != "residual" else 0)
    known = presets()
    name = next((name for name, one in known.items() if one == preset), "this shape")
    fitting = {
        other: bytes_
        for other, one in known.items()
        if (bytes_ := needed_bytes({**one.shape(), "n": n}, design, dtype)) <= available_bytes
    }
    # Something smaller is only a way out if it is there.
    way = f"; {max(fitting, key=fitting.__getitem__)} fits" if fitting else "; no preset fits"
    raise Unsupported(
        f"{name} needs {_told(needed)}, {_told(state)} of them for weights and optimiser; "
        f"{_told(available_bytes)} are free{way}"
    )


def free_bytes(device: str) -> int:
    """Memory that is free on the device now."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def _told(number: int) -> str:
    return f"{number / 1e9:.3g} GB" if number >= 1e9 else f"{number / 1e6:.3g} MB"
