"""Residual sites in a row: read, layer function, write; in blocks that keep little and rebuild the rest in backward."""

import functools
import importlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from perflab.measure.operators import dense
from perflab.measure.parts import AGAIN, part


@dataclass(frozen=True)
class Kit:
    """What a toolkit brings to a site, each function from the file named; loaded when first used.

    read     (x, phi, a, b, *, eps, iterations) -> x for its further uses, u, h_pre (no gradient), h_post, h_res
    write    (x, f, h_post, h_res) -> y
    rebuild  (x, fs, h_pres, h_posts, h_ress) -> the streams of all sites but the first, the reads of all
    """

    reads: str
    writes: str
    rebuilds: str
    #: Whether autograd keeps nothing of a read or write but inputs and coefficients, so that rebuilding helps.
    lean: bool = True

    @functools.cached_property
    def read(self) -> Callable[..., Any]:
        """The read of a site, with x handed through."""
        return _load(self.reads).read_through

    @functools.cached_property
    def write(self) -> Callable[..., Any]:
        """The write of a site."""
        return _load(self.writes).post_res

    @functools.cached_property
    def rebuild(self) -> Callable[..., Any]:
        """The streams and reads of several sites without their layer functions."""
        return _load(self.rebuilds).rebuild


KITS = {
    "eager": Kit("read.eager", "post_res.eager", "recompute.eager", lean=False),
    "compiled": Kit("read.compiled", "post_res.compiled", "recompute.compiled", lean=False),
    "triton": Kit("read.triton_fused", "post_res.triton_column_tiles", "recompute.triton_multi_site"),
    "tilelang": Kit("read.tilelang_fused", "post_res.tilelang_row_block", "recompute.tilelang_multi_site"),
}


@dataclass(frozen=True)
class Site:
    """One residual site: its parameters, and the layer function that it wraps.

    phi, a, b  projection [n C, n^2 + 2n], gates [3], biases [n^2 + 2n], fp32
    F          [T, C] -> [T, C]
    norm       applied to F's input, or None; its output is rebuilt, not kept, where sites are recomputed
    """

    phi: Tensor
    a: Tensor
    b: Tensor
    F: Callable[[Tensor], Tensor]
    norm: Callable[[Tensor], Tensor] | None = None
    eps: float = 1e-20
    iterations: int = 20


def run_site(kit: Kit, site: Site, x: Tensor) -> Tensor:
    """x [T, n, C] through one site."""
    with part("read"):
        x, u, _, h_post, h_res = kit.read(x, site.phi, site.a, site.b, eps=site.eps, iterations=site.iterations)
    f = site.F(_normed(site, u)).to(x.dtype)
    with part("write"):
        return kit.write(x, f, h_post, h_res)


def _normed(site: Site, u: Tensor) -> Tensor:
    """What F gets."""
    with part("norm"):
        return site.norm(u) if site.norm else u


def run_sites(
    kit: Kit, sites: Sequence[Site], x: Tensor, block: int | None = None, boundaries: Sequence[int] = ()
) -> Tensor:
    """x [T, n, C] through all sites; with a block, that many sites at a time keep only x, F's outputs, coefficients.

    boundaries  sites at which a pipeline stage begins: no block crosses one

    Fails: ValueError for a block or a boundary that is not in 1..L.
    """
    if block is None:
        for site in sites:
            x = run_site(kit, site, x)
        return x
    for members in blocks(len(sites), block, boundaries):
        x = _run_block(kit, sites[members], x) if torch.is_grad_enabled() else run_sites(kit, sites[members], x)
    return x


def blocks(L: int, block: int, boundaries: Sequence[int] = ()) -> Iterator[slice]:
    """The recompute blocks of L sites. Fails: ValueError for a block or a boundary that is not in 1..L."""
    if type(block) is not int or not 1 <= block <= L:
        raise ValueError(f"recompute block: expected 1 to {L}, the number of sites; got {block!r}")
    if any(type(boundary) is not int or not 1 <= boundary <= L for boundary in boundaries):
        raise ValueError(f"boundaries: expected sites from 1 to {L}; got {list(boundaries)}")
    edges = sorted({0, L, *boundaries})
    for start, stop in itertools.pairwise(edges):
        for first in range(start, stop, block):
            yield slice(first, min(first + block, stop))


def keeping_inputs(function: Callable[..., Any], *tensors: Tensor) -> Any:
    """function(*tensors), with nothing kept for backward but the tensors: backward calls it once more."""
    return _KeepingInputs.apply(function, *tensors)


class _KeepingInputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *tensors):
        ctx.function = function
        ctx.save_for_backward(*tensors)
        return function(*tensors)

    @staticmethod
    def backward(ctx, *cotangents):
        # Gradients of detached leaves have none of their own: better none than wrong ones.
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(
                "second derivatives are not supported of what backward computes anew (create_graph=True)"
            )
        needs = ctx.needs_input_grad[1:]
        leaves = [t.detach().requires_grad_(need) for t, need in zip(ctx.saved_tensors, needs, strict=True)]
        with torch.enable_grad(), part(AGAIN):
            outputs = ctx.function(*leaves)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        ends = [(o, c) for o, c in zip(outputs, cotangents, strict=True) if o.requires_grad]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        found = iter(torch.autograd.grad([o for o, _ in ends], wanted, [c for _, c in ends], allow_unused=True))
        return None, *(next(found) if need else None for need in needs)


def run_stack(kit: Kit, x: Tensor, stacked: Sequence[Tensor], block: int, **options: Any) -> Tensor:
    """x through L sites whose parameters are stacked: phi, a, b, the norm's weight, the layer function's gain.

    block  sites that a recompute block has; 0, which a size can be and None cannot, keeps everything
    """
    return run_sites(kit, list(stacked_sites(stacked, **options)), x, block or None)


def stacked_sites(stacked: Sequence[Tensor], eps: float, iterations: int) -> Iterator[Site]:
    """Sites with F(v) = w v of the normalised read."""
    for phi, a, b, g, w in zip(*stacked, strict=True):

        def norm(u: Tensor, g: Tensor = g) -> Tensor:
            return rms_norm(u, g, eps)

        def gain(v: Tensor, w: Tensor = w) -> Tensor:
            return w * v

        yield Site(phi, a, b, gain, norm, eps, iterations)


def rms_norm(u: Tensor, weight: Tensor, eps: float = 1e-20) -> Tensor:
    """u [T, C] over its root mean square, times weight [C]; in u's dtype, computed in fp32; only u is kept."""

    def norm(u: Tensor, weight: Tensor) -> Tensor:
        u_32 = u.float()
        return (u_32 * (u_32.square().mean(-1, keepdim=True) + eps).rsqrt() * weight).to(u.dtype)

    return keeping_inputs(norm, u, weight)


def _run_block(kit: Kit, sites: Sequence[Site], x: Tensor) -> Tensor:
    block = _Block(kit, sites, x)
    with torch.autograd.graph.saved_tensors_hooks(block.pack, block.unpack):
        x = _Entrance.apply(block, x)
        for index, site in enumerate(sites):
            if index:
                block.rebuildable("x", index, x)
            x = _run_lean_site(kit, site, x, functools.partial(block.rebuildable, index=index), block.keep)
    block.forward_is_over()
    return x


def _run_lean_site(
    kit: Kit, site: Site, x: Tensor, rebuildable: Callable[..., None], keep: Callable[..., None]
) -> Tensor:
    """As `run_site`; u and F's input are told to `rebuildable` before anyone saves them."""

    def read(x: Tensor, phi: Tensor, a: Tensor, b: Tensor) -> Any:
        return kit.read(x, phi, a, b, eps=site.eps, iterations=site.iterations)

    def read_without_x(x: Tensor, phi: Tensor, a: Tensor, b: Tensor) -> Any:
        return read(x, phi, a, b)[1:]

    with part("read"):
        if kit.lean:
            x, u, h_pre, h_post, h_res = read(x, site.phi, site.a, site.b)
        else:
            u, h_pre, h_post, h_res = keeping_inputs(read_without_x, x, site.phi, site.a, site.b)
    rebuildable(kind="u", tensor=u)
    v = _normed(site, u)
    rebuildable(kind="v", tensor=v)
    f = site.F(v).to(x.dtype)
    keep(f, h_pre, h_post, h_res)
    with part("write"):
        return kit.write(x, f, h_post, h_res) if kit.lean else keeping_inputs(kit.write, x, f, h_post, h_res)


@dataclass(frozen=True)
class _Place:
    """Where a tensor that was not kept comes from: a view of one that is rebuilt."""

    kind: str
    index: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class _Kept:
    """A tensor kept as it was: with hooks of one's own, torch does not notice that it was changed in place since."""

    def __init__(self, tensor: Tensor) -> None:
        # Without its graph, which would keep itself alive through us; a detached tensor shares the version.
        self.tensor, self.version = tensor.detach(), tensor._version

    def unchanged(self) -> Tensor:
        """The tensor. Fails: RuntimeError if it has been changed in place."""
        if self.tensor._version != self.version:
            raise RuntimeError(
                "a tensor that backward needs has been modified by an inplace operation: "
                f"{list(self.tensor.shape)} is at version {self.tensor._version}, expected {self.version}"
            )
        return self.tensor


class _Block:
    """What a block of sites keeps, and how the rest is rebuilt when backward first asks for some of it."""

    def __init__(self, kit: Kit, sites: Sequence[Site], x: Tensor) -> None:
        self.kit, self.norms, self.x = kit, [site.norm for site in sites], _Kept(x)
        self.kept: list[tuple[_Kept, ...]] = []
        #: While forward runs: the storages that can be rebuilt, and the tensors, so that no storage is given out anew.
        self.places: dict[int, tuple[str, int, Tensor, int]] = {}
        self.rebuilt: dict[tuple[str, int], Tensor] | None = None

    def rebuildable(self, kind: str, index: int, tensor: Tensor) -> None:
        """Note that this tensor need not be kept."""
        self.places.setdefault(tensor.untyped_storage()._cdata, (kind, index, tensor.detach(), tensor._version))

    def keep(self, *tensors: Tensor) -> None:
        """Keep what rebuilding starts from: F's output and the coefficients of one site."""
        self.kept.append(tuple(_Kept(tensor) for tensor in tensors))

    def forward_is_over(self) -> None:
        """Let go of what can be rebuilt."""
        self.places.clear()

    def pack(self, tensor: Tensor) -> _Kept | _Place:
        """What autograd keeps in the tensor's stead."""
        kind, index, source, version = self.places.get(tensor.untyped_storage()._cdata, ("", 0, None, 0))
        # What a layer function has changed in place since is not what would be rebuilt.
        if source is None or source.dtype != tensor.dtype or tensor._version != version:
            return _Kept(tensor)
        return _Place(kind, index, tensor.size(), tensor.stride(), tensor.storage_offset())

    def unpack(self, kept: _Kept | _Place) -> Tensor:
        """The tensor, rebuilt if it was not kept."""
        if isinstance(kept, _Kept):
            return kept.unchanged()
        if self.rebuilt is None:
            self.rebuilt = self._rebuild()
        return self.rebuilt[kept.kind, kept.index].as_strided(kept.size, kept.stride, kept.offset)

    @torch.no_grad()
    def _rebuild(self) -> dict[tuple[str, int], Tensor]:
        fs, h_pres, h_posts, h_ress = zip(*([one.unchanged() for one in site] for site in self.kept), strict=True)
        x = self.x.unchanged()
        with torch.cuda.device_of(x), part("rebuild"):
            xs, us = self.kit.rebuild(dense(x), dense(fs[:-1]), h_pres, h_posts[:-1], h_ress[:-1])
            vs = [norm(u) if norm else u for norm, u in zip(self.norms, us, strict=True)]
        found = {("x", index): x for index, x in enumerate(xs, 1)}
        return found | {("u", index): u for index, u in enumerate(us)} | {("v", index): v for index, v in enumerate(vs)}


class _Entrance(torch.autograd.Function):
    """Hands x on; in backward, the last thing that happens in the block: what was rebuilt is let go."""

    @staticmethod
    def forward(ctx, block, x):
        ctx.block = block
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dx):
        ctx.block.rebuilt = None
        return None, dx


def _load(name: str) -> Any:
    return importlib.import_module(f".{name}", __package__)
