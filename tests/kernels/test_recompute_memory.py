"""What stacks of sites keep, measured: table 3 to the byte, the same bits whatever is kept, F once, nothing left over."""

import itertools
import math

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import CheckpointPolicy

from perflab import Unsupported
from perflab.catalogue import load_module
from perflab.measure import memory, passes
from tests.conftest import ROOT

STACK = ROOT / "kernels" / "mhc" / "stack"
STAGE = load_module(STACK / "stage.py").STAGE
SITES = load_module(ROOT / "kernels" / "mhc" / "sites.py")
T, N, C, L = 7, 4, 40, 6
ITEM = {"bf16": 2, "fp32": 4}


def stack(stem):
    return load_module(STACK / f"{stem}.py").stack


def work(function, block, dtype="bf16", tokens=T):
    """A training step of the stage on drawn inputs."""
    shape = {"T": tokens, "n": N, "C": C, "L": L, "L_r": block}
    given, cotangents = passes.draw(STAGE, shape, (dtype, "cpu"), "forward_backward", seed=0)
    return passes.Work(STAGE, function, "forward_backward", shape, given, cotangents)


def table3(block, dtype, boundaries=(), tokens=T):
    """Streams of every block but the first, and F's outputs, in bytes."""
    edges = sorted({0, L, *boundaries})
    blocks = sum(math.ceil((stop - start) / block) for start, stop in itertools.pairwise(edges))
    return ITEM[dtype] * tokens * C * (N * (blocks - 1) + L)


COEFFICIENTS = 4 * T * L * (N * N + 2 * N)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("block", [1, 2, 3, 4, L])
def test_eager_keeps_table_3_and_the_coefficients_to_the_byte(block, dtype):
    kept = memory.measure(work(stack("eager"), block, dtype), "cpu").saved_bytes
    assert kept == table3(block, dtype) + COEFFICIENTS


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(("block", "boundaries"), [(6, (2,)), (2, (1, 4)), (3, (5,)), (4, (4, 6)), (2, (2, 4))])
def test_a_pipeline_boundary_costs_its_streams(block, boundaries, dtype):
    def bounded(x, *stacked, block, eps, iterations):
        sites = list(SITES.stacked_sites(stacked, eps, iterations))
        return SITES.run_sites(SITES.KITS["eager"], sites, x, block, boundaries)

    kept = memory.measure(work(bounded, block, dtype), "cpu").saved_bytes
    assert kept == table3(block, dtype, boundaries) + COEFFICIENTS


def test_without_blocks_more_is_kept():
    kept = {block: memory.measure(work(stack("eager"), block), "cpu").saved_bytes for block in (0, 1)}
    assert kept[0] > 3 * kept[1]


def test_the_peak_of_a_step_follows_equation_20_to_the_byte():
    """Above nC ceil(L / L_r) + (n + 2) C L_r stands the same, however large the block."""
    tokens = 256
    above = set()
    for block in (1, 2, 3, 4, L):
        peak = memory.measure(work(stack("eager"), block, tokens=tokens), "cpu").peak_bytes
        above.add(peak - ITEM["bf16"] * tokens * C * (N * math.ceil(L / block) + (N + 2) * block))
    assert len(above) == 1


def results(step):
    """The output and all gradients."""
    output = step.forward()
    return [output, *step.gradients(output).values()]


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # Dynamo looks
@pytest.mark.parametrize(("stem", "dtype"), [("eager", "bf16"), ("eager", "fp32"), ("compiled", "bf16")])
def test_blocks_change_no_bit(stem, dtype):
    whole = results(work(stack(stem), 0, dtype))
    assert all(tensor.isfinite().all() and tensor.any() for tensor in whole)
    for block in (1, 2, 3, L):
        for ours, expected in zip(results(work(stack(stem), block, dtype)), whole, strict=True):
            assert torch.equal(ours, expected)


class Watched(SITES.Kit):
    """The eager kit, which tells what it rebuilds."""

    rebuilt: list = []  # noqa: RUF012

    def rebuild(self, *given):
        xs, us = SITES.KITS["eager"].rebuild(*given)
        self.rebuilt.append([StorageWeakRef(tensor.untyped_storage()) for tensor in (*xs, *us)])
        return xs, us


@pytest.fixture
def watched():
    Watched.rebuilt.clear()
    return Watched("read.eager", "post_res.eager", "recompute.eager", lean=False)


@pytest.mark.parametrize("block", [1, 2, 4, L])
def test_f_runs_once_per_site_in_a_whole_step(block, watched):
    calls = []

    def counted(x, *stacked, block, eps, iterations):
        def seen(site, index):
            return SITES.Site(
                site.phi, site.a, site.b, lambda v: calls.append(index) or site.F(v), site.norm, eps, iterations
            )

        sites = [seen(site, i) for i, site in enumerate(SITES.stacked_sites(stacked, eps, iterations))]
        return SITES.run_sites(watched, sites, x, block)

    work(counted, block).call()
    assert calls == list(range(L))
    assert len(watched.rebuilt) == math.ceil(L / block), "and yet streams were rebuilt"


def watched_stack(kit):
    def function(x, *stacked, block, eps, iterations):
        return SITES.run_stack(kit, x, stacked, block, eps=eps, iterations=iterations)

    return function


def test_a_second_backward_rebuilds_again_and_nothing_rebuilt_outlives_its_block(watched):
    step = work(watched_stack(watched), 4)
    output = step.forward()
    assert not watched.rebuilt
    first = step.gradients(output, retain_graph=True)
    assert len(watched.rebuilt) == 2
    assert [len(block) for block in watched.rebuilt] == [1 + 2, 3 + 4], "the last block first: streams and reads"
    assert all(storage.expired() for block in watched.rebuilt for storage in block), "though the graph is kept"
    second = step.gradients(output, retain_graph=True)
    assert len(watched.rebuilt) == 4
    assert all(storage.expired() for block in watched.rebuilt for storage in block)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("stem", ["eager", "compiled"])
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # Dynamo looks
def test_a_graph_that_is_dropped_without_a_backward_keeps_nothing(stem):
    step = work(stack(stem), 2)
    step.forward()

    def forward_only():
        step.forward()

    _, alive = memory._cpu_high_water(forward_only)
    assert alive == 0


def test_only_one_block_is_rebuilt_at_a_time(watched):
    step, alive = work(watched_stack(watched), 2), []
    plain = Watched.rebuild

    def rebuild(*given):
        alive.append(sum(not storage.expired() for block in watched.rebuilt for storage in block))
        return plain(watched, *given)

    object.__setattr__(watched, "rebuild", rebuild)
    step.gradients(step.forward())
    assert alive == [0, 0, 0]


@pytest.mark.parametrize("block", range(1, 8))
@pytest.mark.parametrize("boundaries", [(), (1,), (3,), (7,), (2, 5), (1, 2, 3)])
def test_blocks_cover_all_sites_once_and_cross_no_boundary(block, boundaries):
    parts = [range(part.start, part.stop) for part in SITES.blocks(7, block, boundaries)]
    assert [site for part in parts for site in part] == list(range(7))
    assert all(1 <= len(part) <= block for part in parts)
    assert not any(boundary in part[1:] for part in parts for boundary in boundaries)
    segments = itertools.pairwise(sorted({0, 7, *boundaries}))
    assert len(parts) == sum(math.ceil((stop - start) / block) for start, stop in segments), "no more than needed"


@pytest.mark.parametrize("block", [0, -1, L + 1])
def test_a_block_that_there_cannot_be_is_refused(block):
    with pytest.raises(ValueError, match=f"recompute block: expected 1 to {L}.*got {block}"):
        list(SITES.blocks(L, block))


@pytest.mark.parametrize("boundary", [0, -1, L + 1])
def test_a_boundary_that_there_cannot_be_is_refused(boundary):
    with pytest.raises(ValueError, match=f"boundaries: expected sites from 1 to {L}"):
        list(SITES.blocks(L, 2, (3, boundary)))


@pytest.mark.parametrize("stem", ["eager", "eager_checkpoint"])
@pytest.mark.parametrize("block", [-1, L + 1])
def test_a_stack_refuses_such_a_block_too(stem, block):
    with pytest.raises(ValueError, match="recompute block"):
        work(stack(stem), block).forward()


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("block", [1, 2, 4, L])
def test_checkpoint_gives_the_same_bits_and_keeps_table_3_and_random_states(block, dtype):
    step = work(stack("eager_checkpoint"), block, dtype)
    for ours, expected in zip(results(step), results(work(stack("eager"), 0, dtype)), strict=True):
        assert torch.equal(ours, expected)
    beyond = memory.measure(step, "cpu").saved_bytes - table3(block, dtype)
    blocks = math.ceil(L / block)
    state = torch.get_rng_state().nbytes
    assert blocks * state <= beyond <= blocks * state + 16 * L


def test_checkpoint_needs_more_in_backward_than_rebuilding_does():
    """It holds what autograd saves of a whole block, where rebuilding holds its streams."""
    steps = {stem: work(stack(stem), L, tokens=256) for stem in ("eager", "eager_checkpoint")}
    peaks = {stem: memory.measure(step, "cpu").peak_bytes for stem, step in steps.items()}
    assert peaks["eager_checkpoint"] > 2 * peaks["eager"]


def test_checkpoint_without_a_block_says_that_it_is_eager():
    with pytest.raises(Unsupported, match="that is stack/eager"):
        work(stack("eager_checkpoint"), 0).forward()


RUNS = []


@torch.library.custom_op("perflab_tests::gain", mutates_args=())
def gain(v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A layer function that tells when it is really computed."""
    RUNS.append(1)
    return w * v


def _keep_inputs(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _gain_backward(ctx, d):
    v, w = ctx.saved_tensors
    return d * w, (d * v).sum(0)


gain.register_autograd(_gain_backward, setup_context=_keep_inputs)


@pytest.mark.parametrize(("policy", "expected"), [(None, L), (CheckpointPolicy.PREFER_RECOMPUTE, 2 * L)])
def test_checkpoint_does_not_compute_f_again(policy, expected, monkeypatch):
    """With a policy that keeps nothing it would: the count can tell."""
    module = load_module(STACK / "eager_checkpoint.py")

    def told(stacked, eps, iterations):
        for site, w in zip(SITES.stacked_sites(stacked, eps, iterations), stacked[-1], strict=True):
            yield SITES.Site(site.phi, site.a, site.b, lambda v, w=w: gain(v, w), site.norm, eps, iterations)

    monkeypatch.setattr(module, "stacked_sites", told)
    if policy is not None:
        monkeypatch.setattr(module._Keep, "_policy", lambda *_given, **_options: policy)
    RUNS.clear()
    work(module.stack, 2).call()
    assert len(RUNS) == expected
