"""Saved and peak bytes of functions whose answer can be told in advance."""

import pytest
import torch
import torch.utils.checkpoint

from perflab import Stage, Tensor, Tolerance
from perflab.measure import memory, passes
from perflab.measure.passes import Work

# torch's own import of Inductor warns about torch's own TorchScript.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")

STAGE = Stage(
    dims=("T",),
    inputs={"x": Tensor("T", "fp32"), "w": Tensor("T", "fp32")},
    outputs={"y": Tensor("T", "fp32")},
    tolerances={"fp32": {"*": Tolerance(1e-6, 1e-5)}},
    source="nowhere",
)
T = 1000
ROW = 4 * T


def measure(function, pass_="forward_backward"):
    given, cotangents = passes.draw(STAGE, {"T": T}, ("fp32", "cpu"), pass_, 0)
    return memory.measure(Work(STAGE, function, pass_, {"T": T}, given, cotangents), "cpu")


def by_hooks(function):
    """What autograd saves, each storage once, inputs not counted."""
    given, _ = passes.draw(STAGE, {"T": T}, ("fp32", "cpu"), "backward", 0)
    inputs = {tensor.untyped_storage()._cdata for tensor in given.values()}
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function(*given.values())
    return sum(t.untyped_storage().nbytes() for key, t in kept.items() if key not in inputs)


@pytest.mark.parametrize(
    ("function", "saved"),
    [
        (lambda x, w: x * w, 0),  # inputs are not counted
        (lambda x, w: x + w, 0),
        (lambda x, w: (x * w).exp(), ROW),  # exp keeps its result, which is the output
        (lambda x, w: (x * w).exp().neg(), ROW),
        (lambda x, w: (x.sin() * w).exp() * w, 2 * ROW),  # sin's result and exp's; x itself is an input
        (lambda x, w: (x * w).view(10, -1).exp().flatten().exp(), 2 * ROW),  # views are no bytes of their own
        (lambda x, w: (x + w).exp().square().square(), 2 * ROW),  # each storage once, however often it is saved
    ],
)
def test_saved_bytes_are_those_that_autograd_keeps(function, saved):
    found = measure(function)
    assert found.saved_bytes == saved == by_hooks(function)
    assert found.source == "allocator"


def test_what_checkpoint_keeps_is_seen():
    def function(x, w):
        u = (x * w).cos()
        return torch.utils.checkpoint.checkpoint(
            lambda u: u.sin().exp().sin().exp(), u, use_reentrant=False, preserve_rng_state=False
        )

    # cos keeps x w; the checkpoint keeps u; its four steps keep nothing.
    assert measure(function).saved_bytes == 2 * ROW


def test_what_a_function_keeps_past_autograd_is_seen_though_hooks_do_not_see_it():
    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.twice = torch.stack([x, w])
            return x * w

        @staticmethod
        def backward(ctx, dy):
            return dy * ctx.twice[1], dy * ctx.twice[0]

    assert measure(Keeps.apply).saved_bytes == 2 * ROW
    assert by_hooks(Keeps.apply) == 0


def test_peak_bytes_of_each_pass():
    def function(x, w):
        return (x * w).sin().exp()

    # forward, nothing kept: x w and its sine; then the sine and its exponential
    assert measure(function, "forward").peak_bytes == 2 * ROW
    assert measure(function, "forward").saved_bytes is None
    # x w and the output are kept; backward has the two gradients at its end, three rows on its way
    assert measure(function, "backward").saved_bytes == 2 * ROW
    assert 2 * ROW <= measure(function, "backward").peak_bytes <= 4 * ROW
    both = measure(function, "forward_backward").peak_bytes
    assert 4 * ROW <= both <= 6 * ROW


def test_the_same_bytes_whenever_they_are_measured():
    def function(x, w):
        return (x.softmax(0) * w).exp()

    assert measure(function) == measure(function)


def test_compiled_code_is_measured_like_any_other():
    """Inductor allocates past torch's dispatcher; the allocator sees it all the same."""
    compiled = torch.compile(lambda x, w: ((x * w).cumsum(0).sin() * w).cumsum(0), dynamic=False)
    found = measure(compiled)
    assert found.saved_bytes and found.saved_bytes % ROW == 0
    assert found.peak_bytes >= found.saved_bytes
