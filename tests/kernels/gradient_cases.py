"""What the tests of all toolkits share: inputs, bitwise comparison, gradients in every setting that torch has."""

import functools
import warnings

import torch
import torch.utils.checkpoint


def normal(*shape, dtype=torch.float32, std=1.0, seed=0):
    """Normal values, the same on every run."""
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * std).to(dtype)


def assert_same(first, second):
    """Bitwise equal results, single or several."""
    first, second = ((r,) if torch.is_tensor(r) else r for r in (first, second))
    for one, two in zip(first, second, strict=True):
        assert one.dtype == two.dtype
        assert one.shape == two.shape
        assert one.contiguous().view(torch.uint8).equal(two.contiguous().view(torch.uint8))


def assert_tokens_apart(function, inputs, poisoned):
    """A token of NaN and infinities in the inputs named by index changes no bit of another token's results."""
    token = 2
    before = function(*inputs)
    bad = [tensor.clone() for tensor in inputs]
    for index in poisoned:
        flat = bad[index][token].view(-1) if bad[index].dim() > 1 else bad[index][token : token + 1]
        flat.fill_(float("nan"))
        flat[::2] = float("inf")
    # The interpreter computes with NumPy, which would warn of the infinities that are meant here.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        after = function(*bad)
    before, after = ((r,) if torch.is_tensor(r) else r for r in (before, after))
    assert not all(dirty[token].isfinite().all() for dirty in after)
    for clean, dirty in zip(before, after, strict=True):
        others = [t for t in range(len(clean)) if t != token]
        assert clean.isfinite().all()
        assert_same(clean[others], dirty[others])


def gradients(function, inputs, cotangents, frozen=()):
    """Gradients of the inputs not frozen (by index), given the cotangent of every output."""
    inputs = [t.detach().requires_grad_(i not in frozen) for i, t in enumerate(inputs)]
    outputs = function(*inputs)
    outputs = (outputs,) if torch.is_tensor(outputs) else outputs
    return torch.autograd.grad(outputs, [t for t in inputs if t.requires_grad], cotangents)


def cotangents_of(function, inputs, seed=9):
    """Normal cotangents like the function's outputs."""
    outputs = function(*inputs)
    outputs = (outputs,) if torch.is_tensor(outputs) else outputs
    return [normal(*t.shape, dtype=t.dtype, seed=seed + i) for i, t in enumerate(outputs)]


def reference_gradients(reference, inputs, cotangents):
    """Gradients of a reference in fp64, by autograd."""
    return gradients(reference, [t.double() for t in inputs], [t.double() for t in cotangents])


def assert_backward_in_every_setting(function, inputs):
    """Whatever torch does around the function, the gradients' bits are those of a plain call.

    Frozen inputs, cotangents with gaps and expanded ones, a retained graph, autocast, checkpoint, torch.compile.
    """
    cotangents = cotangents_of(function, inputs)
    plain = gradients(function, inputs, cotangents)
    for subset in range(1, 2 ** len(inputs) - 1):
        frozen = [i for i in range(len(inputs)) if subset >> i & 1]
        kept = [g for i, g in enumerate(plain) if i not in frozen]
        assert_same(gradients(function, inputs, cotangents, frozen), kept)
    gappy = [torch.stack([t, t], -1)[..., 0] for t in cotangents]
    assert_same(gradients(function, inputs, gappy), plain)
    ones = [t.new_ones(()).expand(t.shape) for t in cotangents]
    assert_same(gradients(function, inputs, ones), gradients(function, inputs, [t.contiguous() for t in ones]))

    def again(*given):
        outputs = function(*given)
        outputs = (outputs,) if torch.is_tensor(outputs) else outputs
        first, second = (torch.autograd.grad(outputs, given, cotangents, retain_graph=True) for _ in range(2))
        assert_same(first, second)
        return outputs

    assert_same(gradients(again, inputs, cotangents), plain)
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(gradients(function, inputs, cotangents), plain)
    checkpointed = functools.partial(torch.utils.checkpoint.checkpoint, function, use_reentrant=False)
    assert_same(gradients(checkpointed, inputs, cotangents), plain)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert_same(gradients(compiled, inputs, cotangents), plain)
    with torch.no_grad():
        assert_same(function(*inputs), function(*[t.detach() for t in inputs]))
