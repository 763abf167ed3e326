"""One TileLang source for a CPU check and an offline compile: what is launched, refused, and said."""

import pytest
import tilelang.language as T
import torch

from perflab.measure.tile_kernel import (
    HOPPER_SMS,
    NotExpressible,
    alloc_shared,
    capture,
    dtype_name,
    multiprocessors,
    row_split,
    sizes,
    tile_kernel,
)


@tile_kernel()
def scaled(C, dtype):
    tokens = T.dynamic("tokens", "int64")

    @T.prim_func
    def scaled(x: T.Tensor((tokens, C), dtype), y: T.Tensor((tokens, C), dtype), factor: T.int32):
        with T.Kernel(tokens, threads=32) as t:
            row = alloc_shared((C,), dtype)
            T.copy(x[t, 0], row)
            for c in T.Parallel(C):
                y[t, c] = row[c] * T.cast(factor, dtype)

    return scaled


@tile_kernel()
def narrow(C):
    tokens = T.dynamic("tokens", "int32")

    @T.prim_func
    def narrow(x: T.Tensor((tokens, C), "float32")):
        with T.Kernel(tokens, threads=32) as t:
            for c in T.Parallel(C):
                x[t, c] = 1

    return narrow


@tile_kernel()
def reciprocal(C):
    tokens = T.dynamic("tokens", "int64")

    @T.prim_func
    def reciprocal(x: T.Tensor((tokens, C), "float32")):
        with T.Kernel(tokens, threads=32) as t:
            for c in T.Parallel(C):
                x[t, c] = T.fast_rcp(x[t, c])

    return reciprocal


@pytest.mark.parametrize("tokens", [0, 1, 3, 200])
def test_runs_on_cpu_tensors_of_any_token_count(tokens):
    x, y = torch.randn(tokens, 7), torch.full((tokens, 7), torch.nan)
    scaled(7, "float32")(x, y, 3)
    assert torch.equal(y, 3 * x)


def test_one_kernel_per_static_arguments_whatever_the_token_count():
    kernel = scaled(7, "float32")
    kernel(torch.zeros(2, 7), torch.zeros(2, 7), 1)
    compiled = kernel._checked
    scaled(7, "float32")(torch.zeros(5, 7), torch.zeros(5, 7), 1)
    assert scaled(7, "float32") is kernel and kernel._checked is compiled
    assert scaled(8, "float32") is not kernel


def test_nothing_reaches_standard_output(capfd):
    scaled(9, "float32")(torch.zeros(2, 9), torch.zeros(2, 9), 1)
    assert capfd.readouterr().out == ""


def test_bf16_on_a_cpu_is_not_expressible():
    x = torch.zeros(2, 7, dtype=torch.bfloat16)
    with pytest.raises(NotExpressible, match="TileLang's C target has no bf16 type"):
        scaled(7, "bfloat16")(x, x.clone(), 1)


def test_what_the_c_target_lacks_is_named():
    with pytest.raises(NotExpressible, match=r"cannot express reciprocal: .*fast_rcp"):
        reciprocal(7)(torch.ones(2, 7))


def test_captured_launches_are_noted_in_order_and_not_run():
    x, y = torch.ones(2, 7), torch.zeros(2, 7)
    with capture() as launches:
        scaled(8, "bfloat16")(*(torch.empty(2, 8, dtype=torch.bfloat16, device="meta") for _ in range(2)), 1)
        scaled(7, "float32")(x, y, 1)
        scaled(7, "float32")(x, y, 2)
    assert list(launches) == [scaled(8, "bfloat16"), scaled(7, "float32")]
    assert (y == 0).all()


def test_symbolic_sizes_must_be_64_bits_wide():
    with pytest.raises(TypeError, match=r'T\.dynamic."tokens", "int64"\): offsets need 64 bits'):
        narrow(7)(torch.zeros(2, 7))


def test_a_missing_gradient_is_not_silent():
    x, y = torch.ones(2, 7, requires_grad=True), torch.zeros(2, 7)
    with pytest.raises(RuntimeError, match="autograd does not see"):
        scaled(7, "float32")(x, y, 2)
    with torch.no_grad():
        scaled(7, "float32")(x, y, 2)
    assert (y == 2).all()


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ((torch.zeros(2, 7),), "3 tensors are wanted, 1 were given"),
        ((torch.zeros(2, 8), torch.zeros(2, 8), 1), r"x must have shape \[2, 7\], but has \[2, 8\]"),
        ((torch.zeros(2, 7), torch.zeros(3, 7), 1), r"y must have shape \[2, 7\], but has \[3, 7\]"),
        ((torch.zeros(2, 7), torch.zeros(2, 7, 1), 1), r"y must have shape \[2, 7\]"),
        ((torch.zeros(2, 7), torch.zeros(2, 7).half(), 1), "y must be float32, but is float16"),
        ((torch.zeros(2, 7), torch.zeros(7, 2).T, 1), "y must be contiguous"),
        ((torch.zeros(2, 7), torch.zeros(2, 7, device="meta"), 1), "y is on meta, but x on cpu"),
        ((torch.zeros(2, 7, device="meta"), torch.zeros(2, 7, device="meta"), 1), "cuda or cpu tensors, not on meta"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tensors, message):
    with pytest.raises(ValueError, match=message):
        scaled(7, "float32")(*tensors)


def test_sizes_and_dtypes_are_checked_by_name():
    x = torch.zeros(3, 4, 5)
    assert sizes(x, "x", "T n C", n=(2, 4)) == (3, 4, 5)
    with pytest.raises(ValueError, match="n must be one of 1, 2, but x has n = 4"):
        sizes(x, "x", "T n C", n=(1, 2))
    with pytest.raises(ValueError, match=r"x must be \[T, C\], but has shape \[3, 4, 5\]"):
        sizes(x, "x", "T C")
    with pytest.raises(ValueError, match="x must be contiguous"):
        sizes(x.transpose(1, 2), "x", "T C n")
    assert dtype_name(x, "x") == "float32"
    with pytest.raises(ValueError, match="x must be one of float16, but is float32"):
        dtype_name(x, "x", ("float16",))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("width", [1, 7, 1280, 1281, 1920, 2560, 4096, 7168])
def test_a_row_is_split_into_equal_blocks_of_16_bytes_a_thread(width, dtype):
    elements, threads = row_split(width, dtype)
    assert elements * (4 if dtype == "float32" else 2) == 16 * threads and 32 <= threads <= 256
    blocks = -(-width // elements)
    assert (blocks - 1) * elements < width <= blocks * elements
    assert blocks * elements == width or width < 32 or width == 1281


def test_hopper_is_planned_for_where_there_is_no_gpu():
    assert multiprocessors(torch.zeros(1)) == HOPPER_SMS
