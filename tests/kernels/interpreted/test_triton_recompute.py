"""Streams and layer inputs rebuilt over several sites, interpreted: bit by bit those of the kernels that made them."""

import pytest
import torch
from triton_cases import DTYPES, STAGES, assert_same, assert_tokens_apart, implementations, normal

from perflab.catalogue import load_module

pytestmark = pytest.mark.parametrize("recompute", implementations("recompute"))

PRE = load_module(STAGES / "pre" / "triton_column_tiles.py").pre
POST_RES = load_module(STAGES / "post_res" / "triton_column_tiles.py").post_res
REBUILD = load_module(STAGES / "recompute" / "triton_multi_site.py").rebuild


def draw(L, T, n, C, dtype="bf16"):
    # Asymmetric mixing weights: near the identity a matrix and its transpose look alike.
    return (
        normal(T, n, C, dtype=DTYPES[dtype]),
        normal(L - 1, T, C, dtype=DTYPES[dtype], seed=1),
        normal(L, T, n, seed=2).sigmoid(),
        2 * normal(L - 1, T, n, seed=3).sigmoid(),
        normal(L - 1, T, n, n, seed=4) / n**0.5,
    )


def chain(x, f, h_pre, h_post, h_res):
    """What the recomputed tensors were in the first place: one kernel after the other."""
    xs, us = [], [PRE(x, h_pre[0])]
    for site in range(len(f)):
        x = POST_RES(x, f[site], h_post[site], h_res[site])
        xs.append(x)
        us.append(PRE(x, h_pre[site + 1]))
    return xs, us


@pytest.mark.parametrize(
    ("L", "T", "n", "C", "dtype"),
    [
        *[(3, 3, n, 257, dtype) for n in (1, 2, 4, 8) for dtype in DTYPES],
        *[(L, 3, 4, 72, "bf16") for L in (1, 2, 5)],
        *[(2, T, 4, 130, "bf16") for T in (0, 1, 129)],
        *[(2, 2, 4, C, "bf16") for C in (1, 5, 1280, 7168)],
    ],
)
def test_bits_of_the_chain(recompute, L, T, n, C, dtype):
    inputs = draw(L, T, n, C, dtype)
    xs, us = recompute(*inputs)
    assert xs.shape == (L - 1, T, n, C)
    assert us.shape == (L, T, C)
    xs_chain, us_chain = chain(*inputs)
    assert_same(tuple(xs.unbind()), tuple(xs_chain))
    assert_same(tuple(us.unbind()), tuple(us_chain))


def test_streams_are_rounded_between_sites(recompute):
    x, f, h_pre, h_post, h_res = draw(2, 1, 1, 8)
    # 1 + 2^-9 is between two bf16 numbers: unrounded, the second layer input would be 1 + 2^-9 times 256, which is one.
    x.fill_(1.0), f.fill_(2**-9), h_pre.fill_(256.0), h_post.fill_(1.0), h_res.fill_(1.0)
    xs, us = recompute(x, f, h_pre, h_post, h_res)
    assert xs.eq(1).all()
    assert us.eq(256).all()


def test_separate_tensors(recompute):
    inputs = draw(4, 5, 4, 72)
    xs, us = REBUILD(inputs[0], *([t.clone() for t in tensor] for tensor in inputs[1:]))
    stacked = recompute(*inputs)
    assert_same(tuple(xs), tuple(stacked[0]))
    assert_same(tuple(us), tuple(stacked[1]))


def test_writes_where_told(recompute):
    inputs = draw(3, 5, 4, 72)
    expected = recompute(*inputs)
    xs, us = torch.empty_like(expected[0]), torch.empty_like(expected[1])
    REBUILD(inputs[0], *(tensor.unbind() for tensor in inputs[1:]), into=(xs.unbind(), us.unbind()))
    assert_same((xs, us), expected)


def test_strided_inputs(recompute):
    inputs = draw(3, 5, 4, 64)
    strided = [tensor.transpose(0, -1).contiguous().transpose(0, -1) for tensor in inputs]
    assert not any(tensor.is_contiguous() for tensor in strided)
    assert_same(recompute(*strided), recompute(*inputs))


@pytest.mark.parametrize("poisoned", [[0], [1], [2], [3, 4]])
def test_tokens_are_apart(recompute, poisoned):
    # Tokens in front, as the helper wants them; of the outputs too.
    inputs = draw(3, 9, 4, 72)
    in_front = [inputs[0], *(tensor.transpose(0, 1) for tensor in inputs[1:])]

    def of_tokens(x, *rest):
        xs, us = recompute(x, *(tensor.transpose(0, 1) for tensor in rest))
        return (us if poisoned == [2] else xs).transpose(0, 1)

    assert_tokens_apart(of_tokens, [tensor.contiguous() for tensor in in_front], poisoned)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": torch.ones(3, 3, 8)}, "n in 1, 2, 4, 8"),
        ({"x": torch.ones(3, 4, 8, dtype=torch.float64)}, "bf16, fp16 or fp32"),
        ({"h_pre": torch.ones(0, 3, 4)}, "h_pre: expected .* L at least 1"),
        ({"h_pre": torch.ones(3, 4)}, "h_pre: expected .* L at least 1"),
        ({"h_pre": torch.ones(2, 4, 3)}, r"h_pres\[0\]: expected \[3, 4\]"),
        ({"f": torch.ones(2, 3, 8)}, "f: expected 3 dimensions, the first 1"),
        ({"f": torch.ones(1, 3, 9)}, r"fs\[0\]: expected \[3, 8\]"),
        ({"h_post": torch.ones(1, 3, 4, dtype=torch.float16)}, r"h_posts\[0\]: expected .* torch.float32"),
        ({"h_res": torch.ones(1, 3, 4, 4, device="meta")}, "on cpu; got .* on meta"),
    ],
)
def test_refuses(recompute, change, said):
    good = {
        "x": torch.ones(3, 4, 8),
        "f": torch.ones(1, 3, 8),
        "h_pre": torch.ones(2, 3, 4),
        "h_post": torch.ones(1, 3, 4),
        "h_res": torch.ones(1, 3, 4, 4),
    }
    with pytest.raises(ValueError, match=said):
        recompute(**(good | change))


def test_refuses_counts_that_differ(recompute):
    x, f, h_pre, h_post, h_res = (list(tensor) for tensor in draw(3, 5, 4, 8))
    with pytest.raises(ValueError, match="L-1 of the others; got 1 fs, 3 h_pres, 2 h_posts, 2 h_ress"):
        REBUILD(torch.stack(x), f[:1], h_pre, h_post, h_res)
    assert recompute
