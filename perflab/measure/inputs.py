"""Random inputs, as the contract draws them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from perflab.contract import Normal, Shape, Stage, Tensor, Uniform, evaluate

TORCH_DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp64": torch.float64,
}


def draw(stage: Stage, shape: Shape, dtype: str, device: str, seed: int) -> dict[str, torch.Tensor]:
    """Fresh inputs for one case, drawn on the device; the same seed gives the same there."""
    generator = torch.Generator(device).manual_seed(seed)
    return {name: _draw(spec, shape, dtype, generator) for name, spec in stage.inputs.items()}


def draw_cotangents(stage: Stage, shape: Shape, dtype: str, device: str, seed: int) -> dict[str, torch.Tensor]:
    """Incoming gradients for every differentiable output, in its dtype."""
    # Another stream of numbers than the inputs', which start from the seed itself; generators keep 32 bits of a seed.
    generator = torch.Generator(device).manual_seed((seed + 2**31) % 2**32)
    differentiable = {name: spec for name, spec in stage.outputs.items() if spec.differentiable}
    return {name: _draw(spec, shape, dtype, generator) for name, spec in differentiable.items()}


def empty(stage: Stage, shape: Shape, dtype: str, device: str) -> dict[str, torch.Tensor]:
    """Inputs of the right kind with no values: for counting and compiling, where values do not matter."""
    return _empty(stage.inputs, shape, dtype, device)


def empty_cotangents(stage: Stage, shape: Shape, dtype: str, device: str) -> dict[str, torch.Tensor]:
    """Incoming gradients of the right kind with no values."""
    return _empty({name: spec for name, spec in stage.outputs.items() if spec.differentiable}, shape, dtype, device)


def _empty(specs: Mapping[str, Tensor], shape: Shape, dtype: str, device: str) -> dict[str, torch.Tensor]:
    return {
        name: torch.empty(spec.sizes(shape), dtype=TORCH_DTYPES[spec.item_dtype(dtype)], device=device)
        for name, spec in specs.items()
    }


def round_to_tf32(values: torch.Tensor) -> torch.Tensor:
    """Round fp32 values to the nearest that tf32's ten fraction bits hold."""
    bits = values.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def _draw(spec: Tensor, shape: Shape, dtype: str, generator: torch.Generator) -> torch.Tensor:
    sizes, device = spec.sizes(shape), generator.device
    match spec.values:
        case Normal(std=std, mean=mean):
            values = torch.randn(sizes, generator=generator, device=device)
            if isinstance(std, tuple):
                rows = torch.arange(sizes[0], device=device) % len(std)
                scale = torch.tensor(std, device=device)[rows].reshape(-1, *[1] * (len(sizes) - 1))
                values.mul_(scale).add_(mean)
            else:
                values.mul_(evaluate(std, shape) if isinstance(std, str) else std).add_(mean)
        case Uniform(low=low, high=high):
            values = torch.rand(sizes, generator=generator, device=device).mul_(high - low).add_(low)
    item = spec.item_dtype(dtype)
    return round_to_tf32(values) if item == "tf32" else values.to(TORCH_DTYPES[item])
