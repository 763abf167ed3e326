"""Hyper-connections for a model: residual sites around layer functions, on any toolkit, rebuilt in backward or kept."""

import math
import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from perflab.measure.inputs import round_to_tf32

from .equation20 import best_block
from .sites import KITS, Site, blocks, rms_norm, run_sites

#: The gates at the start, from the paper's table 5.
GATE = 0.01
#: The logit of staying in one's own stream at the start; the n - 1 others have 0.
STAY = 6.0


class HyperConnection(nn.Module):
    """Residual sites x <- H_res x + H_post^T F(H_pre x) on n streams: [..., n, C] -> [..., n, C].

    F                a module [..., C] -> [..., C], or several, one a site in the order of the model
    n, C             streams (1, 2, 4 or 8) and hidden size
    toolkit          eager, compiled, triton, tilelang, or auto: triton on a GPU, else eager. Parameters, and so
                     checkpoints, are the same for all
    recompute_block  sites that keep their first streams, what each F gave and the coefficients, and rebuild the rest in
                     backward without F; "best" takes equation 20's; None keeps everything
    norm             whether the site normalises what F gets (RMSNorm, with a weight): then recomputation covers it
    boundaries       sites at which a pipeline stage begins, which no block crosses
    norm_eps         of that norm. The paper's 1e-20 lets the gradients of an all-zero token grow 1e10 times a site

    At the start every stream stays itself, is read with weight 1/n and written with weight 1, so that a model with
    equal streams is its plain residual self; gates of 0.01 let the streams differ.

    Fails: ValueError for a size, toolkit, block or boundary that there cannot be.
    Source: arXiv 2512.24880, sections 4.1 to 4.3; eps and gates from its table 5.
    """

    def __init__(
        self,
        F: nn.Module | Sequence[nn.Module],
        n: int,
        C: int,
        toolkit: str = "auto",
        recompute_block: int | str | None = None,
        norm: bool = True,
        boundaries: Sequence[int] = (),
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.F = nn.ModuleList(F if isinstance(F, nn.ModuleList | Sequence) else [F])
        L, K = len(self.F), n * n + 2 * n
        _check(n, C, L, toolkit)
        self.n, self.C, self.toolkit, self.boundaries = n, C, toolkit, tuple(boundaries)
        self.norm_eps = norm_eps
        self.block = best_block(L, n) if recompute_block == "best" else recompute_block
        # Without a block, boundaries are checked all the same.
        list(blocks(L, L if self.block is None else self.block, self.boundaries))
        self.phi = nn.Parameter(torch.empty(L, n * C, K))
        self.a = nn.Parameter(torch.empty(L, 3))
        self.b = nn.Parameter(torch.empty(L, K))
        self.g = nn.Parameter(torch.empty(L, C)) if norm else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """The start described above; those of F are F's own."""
        n = self.n
        # So that vec(x) phi / r has unit variance, whatever n and C.
        self.phi.normal_(std=1 / math.sqrt(n * self.C))
        self.a.fill_(GATE)
        # sigmoid(b_pre) = 1/n, up to rounding for n = 1; 2 sigmoid(b_post) = 1; softmax-like b_res near the identity.
        pre = -math.log(max(n - 1, 1e-4))
        self.b.copy_(torch.cat([torch.full((n,), pre), torch.zeros(n), (STAY * torch.eye(n)).flatten()]))
        if self.g is not None:
            self.g.fill_(1.0)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., n, C] through all sites. Fails: ValueError for another n or C, or a toolkit that cannot run here."""
        if x.dim() < 2 or x.shape[-2:] != (self.n, self.C):
            raise ValueError(f"x: expected [..., {self.n}, {self.C}]; got {list(x.shape)}")
        kit = KITS[_choose(self.toolkit, x)]
        flat = x.reshape(-1, self.n, self.C)
        return run_sites(kit, self._sites(x.shape[:-2]), flat, self.block, self.boundaries).view(x.shape)

    def _sites(self, lead: torch.Size) -> list[Site]:
        # Coefficients are computed in fp32, whatever dtype the model was moved to.
        phi, a, b = _Tf32.apply(self.phi.float()), self.a.float(), self.b.float()
        norms = self.g if self.g is not None else [None] * len(self.F)
        parts = zip(phi, a, b, self.F, norms, strict=True)
        return [Site(phi, a, b, _flat(F, (*lead, self.C)), _norm(g, self.norm_eps)) for phi, a, b, F, g in parts]


def expand(h: Tensor, n: int) -> Tensor:
    """[..., C] -> [..., n, C]: the streams at the model's start, all equal."""
    return h.unsqueeze(-2).repeat_interleave(n, -2)


def collapse(x: Tensor) -> Tensor:
    """[..., n, C] -> [..., C]: the streams' mean at the model's end, summed in fp32."""
    return x.mean(-2, dtype=torch.float32).to(x.dtype)


class _Tf32(torch.autograd.Function):
    """phi rounded to what tf32 holds, so that all toolkits compute with the same numbers; its gradient is phi's."""

    @staticmethod
    def forward(ctx, phi):
        # A copy: torch.compile takes a view of integers for something that has no gradient.
        return round_to_tf32(phi).clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def _flat(F: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """F on tokens in one row, shown to it in the shape that the caller's tokens have."""

    def flat(v: Tensor) -> Tensor:
        f = F(v.view(shape))
        if f.shape != shape:
            raise ValueError(f"F: expected to give {list(shape)}, as it got; it gave {list(f.shape)}")
        return f.reshape(v.shape)

    return flat


def _norm(g: Tensor | None, eps: float) -> Callable[[Tensor], Tensor] | None:
    return None if g is None else lambda u: rms_norm(u, g, eps)


def _check(n: int, C: int, L: int, toolkit: str) -> None:
    if n not in (1, 2, 4, 8):
        raise ValueError(f"n: expected 1, 2, 4 or 8 streams; got {n}")
    if C < 1:
        raise ValueError(f"C: expected at least 1; got {C}")
    if L < 1:
        raise ValueError("F: expected at least one layer function")
    if toolkit not in ("auto", *KITS):
        raise ValueError(f"toolkit: expected auto, {', '.join(KITS)}; got {toolkit!r}")


def _choose(toolkit: str, x: Tensor) -> str:
    """The toolkit that runs. Fails: ValueError for Triton on a CPU outside its interpreter."""
    if toolkit == "auto":
        return "triton" if x.device.type == "cuda" and find_spec("triton") else "eager"
    if toolkit == "triton" and x.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError("toolkit triton needs a GPU, or TRITON_INTERPRET=1 set before Triton is imported, to be slow")
    return toolkit
