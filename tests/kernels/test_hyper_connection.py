"""The module for a model: one set of parameters for every toolkit, its start, its refusals, tokens that stay apart."""

import itertools

import pytest
import torch
from torch import nn

import perflab
from tests.conftest import ROOT

MODULE = perflab.load("mhc/hyper_connection", workspace=ROOT)
pytestmark = [
    # torch's own import of Inductor warns about torch's own TorchScript.
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
    # Dynamo looks at gradients of tensors that have none.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


def connection(toolkit="eager", C=24, L=3, n=4, **options):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(C, C), nn.Tanh()) for _ in range(L)]
    return MODULE.HyperConnection(layers, n, C, toolkit, **options)


def streams(*lead, n=4, C=24):
    return torch.randn(*lead, n, C, generator=torch.Generator().manual_seed(1))


def step(module, x):
    """Output and the gradients of x and of every parameter."""
    x = x.clone().requires_grad_()
    y = module(x)
    return [y, *torch.autograd.grad(y.square().sum(), [x, *module.parameters()])]


def spread(module):
    """The module with gates and biases as after some training, so that every term of every gradient counts."""
    with torch.no_grad():
        module.a.fill_(0.7)
        module.b.add_(torch.randn(module.b.shape, generator=torch.Generator().manual_seed(2)))
    return module


@pytest.mark.parametrize("toolkit", ["compiled", "tilelang"])
def test_a_checkpoint_of_one_toolkit_gives_the_same_loss_and_gradients_with_another(toolkit):
    """Triton's part is in interpreted/test_triton_hyper_connection.py."""
    trained, other = spread(connection()), connection(toolkit)
    assert list(trained.state_dict()) == list(other.state_dict())
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(trained.state_dict())
    for one, two in zip(step(trained, streams(5)), step(other, streams(5)), strict=True):
        torch.testing.assert_close(one, two, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("toolkit", ["eager", "tilelang"])
@pytest.mark.parametrize("block", [1, 2, 3, "best"])
def test_recomputation_changes_no_bit(toolkit, block):
    kept, rebuilt = (spread(connection(toolkit, recompute_block=b)) for b in (None, block))
    for one, two in zip(step(kept, streams(5)), step(rebuilt, streams(5)), strict=True):
        assert torch.equal(one, two)


def test_at_the_start_equal_streams_are_the_plain_residual_model():
    """Up to what leaves a stream: exp(-STAY) a site."""
    module = connection()
    h = torch.randn(6, 24, generator=torch.Generator().manual_seed(1))
    plain = h
    for layer in module.F:
        plain = plain + layer(nn.functional.rms_norm(plain, (24,), eps=1e-20))
    found = MODULE.collapse(module(MODULE.expand(h, 4)))
    assert ((found - plain).norm() / plain.norm()).item() < 5e-3
    assert (module.a == 0.01).all()


def test_phi_is_rounded_to_tf32_for_every_toolkit_and_has_a_gradient():
    module = connection()
    phi = module._sites((5,))[0].phi
    bits = phi.detach().view(torch.int32)
    assert (bits & 0x1FFF).eq(0).all()
    assert (phi - module.phi[0]).abs().max() <= module.phi.abs().max() * 2**-11
    assert step(spread(module), streams(5))[2].abs().max() > 0


@pytest.mark.parametrize("lead", [(), (1,), (0,), (2, 3), (2, 1, 3)])
def test_any_shape_before_the_streams(lead):
    module = connection(recompute_block=2)
    y = module(streams(*lead))
    assert y.shape == (*lead, 4, 24)
    flat = module(streams(*lead).view(-1, 4, 24))
    assert torch.equal(y.view(-1, 4, 24), flat)


def test_layer_functions_see_the_callers_shape():
    seen = []

    class Layer(nn.Module):
        def forward(self, v):
            seen.append(tuple(v.shape))
            return v

    MODULE.HyperConnection(Layer(), 4, 24)(streams(2, 3))
    assert seen == [(2, 3, 24)]


def test_a_strided_input_is_right():
    module, x = connection(), streams(5)
    strided = x.transpose(0, 2).contiguous().transpose(0, 2)
    assert not strided.is_contiguous()
    torch.testing.assert_close(module(strided), module(x))


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_every_number_of_streams(n):
    kept, rebuilt = (spread(connection(n=n, recompute_block=b)) for b in (None, 2))
    for one, two in zip(step(kept, streams(5, n=n)), step(rebuilt, streams(5, n=n)), strict=True):
        assert torch.equal(one, two) and one.isfinite().all()


@pytest.mark.parametrize("toolkit", ["eager", "tilelang"])
def test_a_bad_token_stays_alone_and_a_zero_token_is_fine(toolkit):
    module = spread(connection(toolkit, recompute_block=2))
    x = streams(6)
    clean, dirty = x.clone(), x.clone()
    dirty[1], dirty[2, 0, 0] = float("nan"), float("inf")
    clean[4] = dirty[4] = 0
    results = []
    for given in (clean.requires_grad_(), dirty.requires_grad_()):
        y = module(given)
        (dx,) = torch.autograd.grad(y, given, torch.ones_like(y))
        results.append((y, dx))
    others = [0, 3, 4, 5]
    for one, two in zip(*results, strict=True):
        assert torch.equal(one[others], two[others])
        assert one.isfinite().all()
    assert not results[1][0][1].isfinite().any()


def test_every_subset_of_frozen_parameters():
    module = spread(connection(recompute_block=2))
    names = ["phi", "a", "b", "g"]
    x = streams(5)
    whole = dict(zip(["y", "x", *dict(module.named_parameters())], step(module, x), strict=True))
    for count in range(1, 5):
        for frozen in itertools.combinations(names, count):
            for name, parameter in module.named_parameters():
                parameter.requires_grad_(name not in frozen)
            live = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
            found = torch.autograd.grad(module(x).square().sum(), [p for _, p in live])
            for (name, _), gradient in zip(live, found, strict=True):
                assert torch.equal(gradient, whole[name]), (frozen, name)


class Gappy(nn.Module):
    """A layer function whose output has gaps in memory."""

    def __init__(self, C):
        super().__init__()
        self.wide = nn.Linear(C, 2 * C)

    def forward(self, v):
        return self.wide(v).chunk(2, -1)[0]


@pytest.mark.parametrize("toolkit", ["eager", "tilelang"])
@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(24, 24)),
        lambda: Gappy(24),
        nn.Identity,
        lambda: nn.Sequential(nn.Unflatten(-1, (4, 6)), nn.Flatten(-2)),
        lambda: nn.Sequential(nn.Linear(24, 24), nn.ReLU(inplace=True)),
    ],
)
def test_recomputation_changes_no_bit_whatever_the_layer_function_does(toolkit, layer):
    results = []
    for block in (None, 3):
        torch.manual_seed(0)
        module = spread(MODULE.HyperConnection([layer() for _ in range(3)], 4, 24, toolkit, recompute_block=block))
        results.append(step(module, streams(5)))
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


def test_a_layer_function_runs_once_a_step_with_recomputation():
    calls = []

    class Counts(nn.Module):
        def forward(self, v):
            calls.append(1)
            return v * 2

    step(spread(MODULE.HyperConnection([Counts() for _ in range(3)], 4, 24, "eager", recompute_block=3)), streams(5))
    assert len(calls) == 3


@pytest.mark.parametrize("change", ["F", "a", "g", "x"])
def test_what_is_changed_in_place_before_backward_is_told_in_blocks_too(change):
    module, x = spread(connection(recompute_block=2)), streams(5).requires_grad_() + 0
    y = module(x)
    with torch.no_grad():
        for parameter in module.F.parameters() if change == "F" else [x if change == "x" else getattr(module, change)]:
            parameter.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("block", [None, 2])
def test_every_parameter_has_its_gradient_under_torch_compile(block):
    module, x = spread(connection(L=2, recompute_block=block)), streams(5)
    compiled = torch.compile(module, backend="aot_eager")
    for function in (module, compiled):
        module.zero_grad()
        function(x).square().sum().backward()
        found = {name: parameter.grad.clone() for name, parameter in module.named_parameters()}
        if function is module:
            plain = found
    assert found.keys() == plain.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, plain[name], rtol=1e-4, atol=1e-5)


def test_a_zero_token_over_many_sites_has_finite_gradients():
    x = streams(5)
    x[2] = 0
    torch.manual_seed(0)
    module = MODULE.HyperConnection([nn.Linear(24, 24, bias=False) for _ in range(6)], 4, 24, "eager")
    assert all(one.isfinite().all() for one in step(module, x))


def test_a_layer_function_of_another_shape_is_refused():
    class Transposes(nn.Module):
        def forward(self, v):
            return v.T

    with pytest.raises(ValueError, match=r"F: expected to give \[5, 24\]"):
        MODULE.HyperConnection(Transposes(), 4, 24)(streams(5))


def test_a_module_list_is_several_layer_functions():
    assert len(MODULE.HyperConnection(nn.ModuleList([nn.Identity(), nn.Identity()]), 4, 24).F) == 2


def test_a_model_moved_to_bf16_computes_its_coefficients_in_fp32():
    module = spread(connection()).bfloat16()
    y = module(streams(5).bfloat16())
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), spread(connection())(streams(5)), rtol=0.1, atol=0.1)


def test_a_second_derivative_is_refused_not_wrong():
    module, x = spread(connection()), streams(5).requires_grad_()
    with pytest.raises(RuntimeError, match="second derivatives are not supported"):
        torch.autograd.grad(module(x).square().sum(), x, create_graph=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"n": 3}, "n: expected 1, 2, 4 or 8 streams; got 3"),
        ({"C": 0}, "C: expected at least 1"),
        ({"L": 0}, "F: expected at least one layer function"),
        ({"toolkit": "cuda"}, "toolkit: expected auto, eager, compiled, triton, tilelang; got 'cuda'"),
        ({"recompute_block": 0}, "recompute block: expected 1 to 3"),
        ({"recompute_block": 4}, "recompute block: expected 1 to 3"),
        ({"recompute_block": "bset"}, "recompute block: expected 1 to 3, the number of sites; got 'bset'"),
        ({"recompute_block": True}, "recompute block: expected 1 to 3"),
        ({"recompute_block": 2.5}, "recompute block: expected 1 to 3"),
        ({"boundaries": [99]}, "boundaries: expected sites from 1 to 3"),
        ({"recompute_block": 1, "boundaries": [4]}, "boundaries: expected sites from 1 to 3"),
    ],
)
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors:UserWarning")
def test_refuses_what_there_cannot_be(change, said):
    with pytest.raises(ValueError, match=said):
        connection(**change)


def test_refuses_inputs_that_do_not_fit():
    with pytest.raises(ValueError, match=r"x: expected \[..., 4, 24\]; got \[5, 2, 24\]"):
        connection()(streams(5, n=2))
    with pytest.raises(ValueError, match="toolkit triton needs a GPU"):
        connection("triton")(streams(5))


def test_an_unknown_file_is_told_with_the_nearest_name():
    from perflab.errors import PerflabError

    with pytest.raises(PerflabError, match="did you mean mhc/hyper_connection"):
        perflab.load("mhc/hyperconnection", workspace=ROOT)
