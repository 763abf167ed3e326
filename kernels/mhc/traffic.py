"""What residual sites move, as counted: bytes a token and launches a call, of each part, pass and toolkit.

`traffic.json` holds the counts of kept runs, with the run that each comes from; `benchmarks/site_traffic.py` writes it.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .model.presets import presets

#: Streams that are counted.
STREAMS = 4
PASSES = ("forward", "backward")
#: A site's parts: its read, its write, and what is moved where their gradients of x meet.
PARTS = ("read", "write", "meeting")


@dataclass(frozen=True)
class Moved:
    """Bytes of one token, read and written, and launches of one call for any number of tokens."""

    bytes: float = 0.0
    launches: int = 0

    def __add__(self, other: Moved) -> Moved:
        return Moved(self.bytes + other.bytes, self.launches + other.launches)

    def __sub__(self, other: Moved) -> Moved:
        return Moved(self.bytes - other.bytes, self.launches - other.launches)

    def times(self, count: int) -> Moved:
        """As many of the same."""
        return Moved(self.bytes * count, self.launches * count)


@functools.cache
def rows() -> tuple[dict[str, Any], ...]:
    """All counts: stage, toolkit, pass, dtype, sizes, bytes of the whole call, launches, source, run."""
    return tuple(json.loads((Path(__file__).parent / "traffic.json").read_text(encoding="utf-8"))["rows"])


@functools.cache
def _index() -> dict[tuple[Any, ...], dict[str, Any]]:
    """The rows of sites at a sequence's tokens, by what tells them apart."""
    keys = ("stage", "toolkit", "pass", "C", "dtype", "L")
    return {tuple(row.get(key) for key in keys): row for row in rows() if not row.get("decode")}


@dataclass(frozen=True)
class Counted:
    """The counts for streams of one width and dtype, at the tokens of one sequence.

    phi and its gradient are moved once a call: their share of a token is that at those tokens.

    Fails: ValueError, from every method, where the width or dtype was not counted.
    """

    C: int
    dtype: str

    def site(self, toolkit: str) -> dict[str, dict[str, Moved]]:
        """One site without its layer function, by part and pass.

        The meeting is what the counted site has beyond its layer function, its read and its write, counted apart.
        """
        found: dict[str, dict[str, Moved]] = {part: {} for part in PARTS}
        for pass_ in PASSES:
            read = found["read"][pass_] = self._of("read", toolkit, pass_)
            write = found["write"][pass_] = self._of("post_res", toolkit, pass_)
            whole = self._of("site", toolkit, pass_) - self.layer_function(pass_)
            found["meeting"][pass_] = whole - read - write
        return found

    def layer_function(self, pass_: str) -> Moved:
        """The gain inside the counted site: the one part of it that Triton's kernels do not do."""
        row = self._row("site", "triton", pass_)
        return Moved(row["tensor_ops_bytes"] / row["T"], row["tensor_ops_launches"])

    def tokens(self) -> int:
        """Tokens of the counted calls."""
        return int(self._row("site", "triton", "forward")["T"])

    def residual(self) -> dict[str, Moved]:
        """The plain residual by pass: backward, the two gradients of x are added as x and f are forward."""
        merge = self._of("residual", "eager", "forward")
        return dict.fromkeys(PASSES, merge)

    def rebuild(self, L: int) -> Moved:
        """The streams and reads of a block of L sites, rebuilt by one launch of Triton: affine in L."""
        one, two = (self._of("recompute", "triton", "forward", sites) for sites in (1, 2))
        return one + (two - one).times(L - 1)

    def _of(self, stage: str, toolkit: str, pass_: str, L: int | None = None) -> Moved:
        row = self._row(stage, toolkit, pass_, L)
        return Moved((row["read_bytes"] + row["write_bytes"]) / row["T"], row["launches"])

    def _row(self, stage: str, toolkit: str, pass_: str, L: int | None = None) -> dict[str, Any]:
        try:
            return _index()[f"mhc/{stage}", toolkit, pass_, self.C, self.dtype, L]
        except KeyError:
            widths = {preset.C: name for name, preset in reversed(presets().items())}
            counted = ", ".join(
                f"C={C} {dtype}" + (f" ({widths[C]})" if C in widths else "")
                for C, dtype in sorted({(row["C"], row["dtype"]) for row in rows()})
            )
            raise ValueError(
                f"C={self.C} {self.dtype}: bytes of mhc/{stage} were not counted; add the width to "
                f"suites/projection.toml (counted are {counted})"
            ) from None


@dataclass(frozen=True)
class Decoding:
    """The counts of a site's forward, by Triton, for the few tokens that a decoding step has."""

    C: int

    def batches(self) -> list[int]:
        """Tokens of a step that were counted."""
        return sorted({row["T"] for row in rows() if row.get("decode") and row["C"] == self.C})

    def site(self, batch: int) -> Moved:
        """The whole step's bytes, not a token's, and launches. Fails: ValueError where the batch was not counted."""
        found = [r for r in rows() if r.get("decode") and (r["C"], r["T"]) == (self.C, batch)]
        if {row["stage"] for row in found} != {"mhc/read", "mhc/post_res"}:
            raise ValueError(
                f"C={self.C}, {batch} tokens: not counted; counted are {self.batches()} (suites/decode.toml)"
            )
        return Moved(sum(r["read_bytes"] + r["write_bytes"] for r in found), sum(r["launches"] for r in found))
