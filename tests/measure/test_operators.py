"""Operators as autograd, torch.compile and the counters see them."""

import pytest
import torch
from torch import Tensor

from perflab.measure.operators import Operator
from perflab.measure.traffic import dispatch


def _outputs(x, w, power):
    return x.new_empty(x.shape), x.new_empty(x.shape[0])


def _forward(x: Tensor, w: Tensor, power: int) -> tuple[Tensor, Tensor]:
    assert x.is_contiguous() and w.is_contiguous() and isinstance(power, int)
    return x * w**power, x.sum(1)


def _backward(needs, dy, ds, x, w, s, power):
    assert all(t.is_contiguous() for t in (dy, ds, x, w, s)) and isinstance(power, int)
    dw = (dy * x).sum(0) * power * w ** (power - 1) if needs[1] else None
    return dy * w**power + ds[:, None], dw


plain = Operator(_forward, _backward, _outputs, keeps=(1,))


def _forward_through(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return x * w, w * 2


def _backward_through(needs, dx, dy, x, w, twice):
    assert torch.equal(twice, 2 * w)
    return dx + dy * w, (dy * x).sum(0)


through = Operator(
    _forward_through, _backward_through, lambda x, w: (x.new_empty(x.shape), w.new_empty(w.shape)),
    keeps=(1,), hidden=1, through=0,
)  # fmt: skip


def inputs(*frozen):
    torch.manual_seed(0)
    return [t.requires_grad_(i not in frozen) for i, t in enumerate((torch.randn(4, 3), torch.rand(3)))]


def expected(x, w):
    return x * w**3, x.sum(1)


def gradients(function, given):
    outputs = function(*given)
    return torch.autograd.grad(
        [o for o in outputs if o.requires_grad], [t for t in given if t.requires_grad],
        [torch.sin(o.detach()) for o in outputs if o.requires_grad],
    )  # fmt: skip


@pytest.mark.parametrize("frozen", [(), (0,), (1,)])
@pytest.mark.parametrize("around", [lambda f: f, lambda f: torch.compile(f, fullgraph=True, backend="aot_eager")])
def test_gradients_with_numbers_and_kept_outputs(frozen, around):
    found = gradients(around(lambda x, w: plain(x, w, 3)), inputs(*frozen))
    torch.testing.assert_close(found, gradients(expected, inputs(*frozen)))


def test_inputs_and_cotangents_with_gaps_arrive_without():
    x, w = torch.randn(3, 4).t().requires_grad_(), torch.rand(6)[::2].requires_grad_()
    y, s = plain(x, w, 3)
    found = torch.autograd.grad((y, s), (x, w), (torch.ones(()).expand(4, 3), torch.rand(8)[::2]))
    assert all(torch.isfinite(one).all() for one in found)


def test_tensors_that_start_at_odd_places_arrive_where_wide_accesses_may_start():
    seen = []

    def forward(x: Tensor) -> Tensor:
        seen.append(x.data_ptr() % 16)
        return x * 2

    def backward(needs, dy, x):
        seen.append(dy.data_ptr() % 16)
        return (dy * 2,)

    double = Operator(forward, backward, torch.empty_like)
    x = torch.randn(9)[1:].requires_grad_()
    (dx,) = torch.autograd.grad(double(x), x, torch.ones(9)[1:])
    assert dx.eq(2).all()
    assert seen == [0, 0]


@pytest.mark.parametrize("around", [lambda f: f, lambda f: torch.compile(f, fullgraph=True, backend="aot_eager")])
def test_an_input_handed_through_brings_its_further_gradient_back(around):
    def function(x, w):
        x, y = through(x, w)
        return (x.sin() + y,)

    found = gradients(around(function), inputs())
    torch.testing.assert_close(found, gradients(lambda x, w: (x.sin() + x * w,), inputs()))


def test_hidden_outputs_are_given_to_who_asks_and_have_no_gradient():
    x, y, twice = through.everything(*inputs())
    assert x.requires_grad and y.requires_grad and not twice.requires_grad


def test_a_second_derivative_is_refused_not_wrong():
    x, w = inputs()
    (dx,) = torch.autograd.grad(plain(x, w, 3)[0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        dx.sum().backward()


def test_operations_inside_an_operator_are_counted():
    x, w = inputs()
    with torch.no_grad():
        inside, outside = dispatch.count(lambda: plain(x, w, 3)), dispatch.count(lambda: expected(x, w))
    assert (inside.read_bytes, inside.write_bytes) == (outside.read_bytes, outside.write_bytes)
    assert not any("perflab" in name for name in inside.detail)


def test_backward_inside_an_operator_is_counted():
    x, w = inputs()
    outputs = plain(x, w, 3)
    found = dispatch.count(lambda: torch.autograd.grad(outputs, (x, w), [torch.ones_like(o) for o in outputs]))
    assert found.detail["aten.mul.Tensor"]["count"] >= 3


def test_one_file_imported_twice_gives_two_operators():
    again = Operator(_forward, _backward, _outputs, keeps=(1,))
    x, w = inputs()
    assert torch.equal(plain(x, w, 2)[0], again(x, w, 2)[0])
