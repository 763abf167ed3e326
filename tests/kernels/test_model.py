"""The decoders: parameters, one start and one text for all designs, recomputation, balance, precision, memory."""

from pathlib import Path

import pytest
import torch

from perflab.catalogue import load_module

ROOT = Path(__file__).resolve().parents[2] / "kernels" / "mhc"
DECODER, EXPERTS, MEMORY, PRESETS, TRAINING = (
    load_module(ROOT / "model" / f"{stem}.py") for stem in ("decoder", "experts", "memory", "presets", "training")
)
Design, Training = TRAINING.Design, TRAINING.Training
PRESET = PRESETS.presets()
TINY = {**PRESET["tiny"].shape(), "n": 4}
MICRO = {
    "layers": 2, "C": 16, "ffn": 8, "routed": 4, "active": 2, "shared": 1, "heads": 2, "head_dim": 8, "kv_rank": 16, "rope": 4,
    "vocabulary": 256, "S": 6, "B": 2, "n": 4,
}  # fmt: skip
NATIVE = [
    ("residual", "eager"),
    ("hc", "eager"),
    ("hc", "compiled"),
    ("mhc", "eager"),
    ("mhc", "compiled"),
    ("mhc", "tilelang"),
]

pytestmark = [
    # torch's own import of Inductor warns about torch's own TorchScript.
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
    # Dynamo looks at gradients of tensors that have none.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


def train(shape=MICRO, residual="mhc", toolkit="eager", recompute=False, dtype="fp32", seed=0):
    return Training(shape, Design(residual, toolkit, recompute), dtype, "cpu", seed)


def test_parameters_are_the_presets():
    for residual, n in (("residual", 0), ("mhc", 4)):
        found = sum(weight.numel() for weight in train(TINY, residual).parameters.values())
        assert found == PRESET["tiny"].parameters(n)


@pytest.mark.parametrize("name", ["3b", "27b"])
@pytest.mark.parametrize(("residual", "n"), [("residual", 0), ("mhc", 4)])
def test_parameters_of_the_papers_models_without_allocating(name, residual, n):
    with torch.device("meta"):
        model = DECODER.Decoder(PRESET[name], 4, Design(residual))
    assert sum(weight.numel() for weight in model.parameters()) == PRESET[name].parameters(n)


def test_hyper_connections_have_few_parameters():
    n, C, L = 4, TINY["C"], 2 * TINY["layers"]
    found = sum(weight.numel() for weight in train(TINY, "hc").parameters.values())
    assert found == PRESET["tiny"].parameters(0) + L * (C * (n + 2) + n * n + 2 * n + 3)


def test_designs_start_with_the_same_weights_and_read_the_same_text():
    plain, *others = [train(residual=residual) for residual in ("residual", "hc", "mhc")]
    for other in others:
        shared = plain.state().keys() & other.state().keys()
        assert len(shared) > 10
        assert all(torch.equal(plain.state()[name], other.state()[name]) for name in shared)
        assert torch.equal(plain.batch(3), other.batch(3))
    assert not torch.equal(plain.batch(3), plain.batch(4))
    assert not torch.equal(plain.state()["head"], train(residual="residual", seed=1).state()["head"])


def test_a_batch_is_bytes_of_the_kernels_sources():
    batch = train().batch(0)
    assert batch.shape == (MICRO["B"], MICRO["S"] + 1) and batch.dtype == torch.int64
    whole = b"".join(path.read_bytes() for path in sorted(ROOT.parent.rglob("*.py")))
    assert all(bytes(row.tolist()) in whole for row in batch)


@pytest.mark.parametrize(("residual", "toolkit"), [one for one in NATIVE if one != ("hc", "compiled")])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_recomputation_changes_no_bit_of_a_step(residual, toolkit, dtype):
    if (toolkit, dtype) == ("tilelang", "bf16"):
        pytest.skip("TileLang's C target has no bf16 type")
    kept, rebuilt = (spread(train(MICRO, residual, toolkit, recompute, dtype)) for recompute in (False, True))
    tokens = kept.batch(0)
    for one, two in zip(kept.gradients(tokens).values(), rebuilt.gradients(tokens).values(), strict=True):
        assert torch.equal(one, two)
    kept.step(tokens), rebuilt.step(tokens)
    assert all(torch.equal(one, two) for one, two in zip(kept.state().values(), rebuilt.state().values(), strict=True))


def spread(training):
    """Its coefficients and biases as after some training, so that every term of every gradient counts."""
    generator = torch.Generator().manual_seed(2)
    state = training.state()
    for name, value in state.items():
        if name.endswith((".a", ".b", ".g", "g", "balance")):
            scale = {"a": 0.7, "balance": 0.05}.get(name.rpartition(".")[2], 0.3)
            value.add_(scale * torch.randn(value.shape, generator=generator))
    training.load(state)
    return training
