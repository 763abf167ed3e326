"""The decoders: parameters, one start and one text for all designs, recomputation, balance, precision, memory."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from perflab.catalogue import load_module
from perflab.measure import memory as measured_memory

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


@pytest.fixture(autouse=True)
def compiled_anew():
    """Beyond a limit of recompilations Dynamo would go on in eager mode without a word, and eager be checked."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield


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
    """Its coefficients and biases as after some training, so that every term of every gradient counts.

    Those of hyper-connections by less: nothing keeps their reads from cancelling, which no norm after it forgives.
    """
    generator = torch.Generator().manual_seed(2)
    state = training.state()
    moved = 0.1 if "sites.theta" in state else 0.5
    for name, value in state.items():
        tail = name.rpartition(".")[2]
        if tail in ("a", "b", "g", "balance"):
            value.add_({"g": 0.3, "balance": 0.05}.get(tail, moved) * torch.randn(value.shape, generator=generator))
    training.load(state)
    return training


REFERENCE = load_module(ROOT / "step" / "reference.py")


def drawn():
    """Tokens that do not change with the sources."""
    size = (MICRO["B"], MICRO["S"] + 1)
    return torch.randint(MICRO["vocabulary"], size, generator=torch.Generator().manual_seed(0))


def error(found, expected):
    return ((found.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize(("residual", "toolkit"), NATIVE)
@pytest.mark.parametrize("recompute", [False, True])
def test_loss_and_every_gradient_against_fp64(residual, toolkit, recompute):
    training = spread(train(MICRO, residual, toolkit, recompute))
    tokens = drawn()
    found = training.gradients(tokens)
    expected = REFERENCE.step(training.state(), tokens, MICRO, residual)
    assert found.keys() == expected.keys()
    errors = {name: error(found[name], expected[name]) for name in found}
    assert max(errors.values()) < 1e-5, errors


@pytest.mark.parametrize("residual", ["residual", "hc", "mhc"])
def test_gradients_in_bf16_are_near_those_of_fp64(residual):
    training = spread(train(MICRO, residual, dtype="bf16"))
    tokens = drawn()
    found = training.gradients(tokens)
    rounded = {**training.state(), **{name: one.detach().float() for name, one in training.parameters.items()}}
    expected = REFERENCE.step(rounded, tokens, MICRO, residual, training.choices(), slack=0.02)
    for name, gradient in found.items():
        # Coefficients' gradients are sums over tokens and channels of both signs: their terms are rounded, not they.
        bound = 0.1 if name in ("sites.a", "sites.b", "sites.theta", "sites.phi") else 0.03
        assert error(gradient, expected[name]) < bound, name


def test_mistakes_are_refused():
    wrong = load_module(ROOT / "step" / "wrong" / "constant_write.py").step(MICRO, "fp32", "cpu", 0)
    spread(wrong)
    tokens = drawn()
    found, expected = wrong.gradients(tokens), REFERENCE.step(wrong.state(), tokens, MICRO, "hc")
    errors = {name: error(found[name], expected[name]) for name in found}
    assert {name for name, one in errors.items() if one > 1e-2} == {"sites.theta", "sites.a", "sites.b"}
    coupled = load_module(ROOT / "step" / "wrong" / "coupled_decay.py").step(MICRO, "fp32", "cpu", 0)
    assert max(update_errors(coupled, drawn()).values()) > 0.1
    unbalanced = load_module(ROOT / "step" / "wrong" / "unbalanced.py").step(MICRO, "fp32", "cpu", 0)
    errors = update_errors(unbalanced, drawn())
    assert {name for name, one in errors.items() if one > 0.1} == {
        f"{name}.balance" for name, _ in unbalanced.model.mixtures()
    }


def weights_only(found):
    return {name: gradient for name, gradient in found.items() if name != "loss"}


def update_errors(training, tokens):
    """By weight: how far a step's change is from the reference's, over the change."""
    before, gradients = training.state(), training.gradients(tokens)
    training.step(tokens)
    after, expected = training.state(), REFERENCE.update(before, weights_only(gradients), training.choices(), {})
    return {name: error(after[name].double() - before[name], expected[name] - before[name]) for name in expected}


@pytest.mark.parametrize("residual", ["residual", "hc", "mhc"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_step_is_adamw_on_fp32_weights(residual, dtype):
    training = spread(train(MICRO, residual, dtype=dtype))
    # Weights of 1 are known to 6e-8, and change by 1e-3.
    assert max(update_errors(training, drawn()).values()) < 1e-4
    assert all(weight.dtype == torch.float32 for weight in training.state().values())
    for name, parameter in training.parameters.items():
        assert parameter.grad is None or dtype == "fp32" or parameter.dtype == torch.float32
        assert torch.equal(parameter, training.state()[name].to(parameter.dtype))


def test_several_updates_are_torchs():
    generator = torch.Generator().manual_seed(0)
    weight, gradient = (torch.randn(50, dtype=torch.float64, generator=generator) for _ in range(2))
    ours, theirs, memory = {"w": weight}, weight.clone(), {}
    optimiser = torch.optim.AdamW([theirs], **TRAINING.OPTIMISER)
    for step in range(3):
        theirs.grad = gradient.roll(step)
        optimiser.step()
        ours = REFERENCE.update(ours, {"w": theirs.grad}, {}, memory)
    assert ours.keys() == {"w"}
    torch.testing.assert_close(ours["w"], theirs, rtol=1e-12, atol=1e-14)


def test_gradients_leave_nothing_behind_and_loading_starts_anew():
    training = train()
    before, tokens = training.state(), training.batch(0)
    training.gradients(tokens)
    assert all(parameter.grad is None for parameter in training.parameters.values())
    assert all(torch.equal(before[name], one) for name, one in training.state().items())
    training.step(tokens)
    once = training.state()
    training.step(tokens)
    assert not torch.equal(training.state()["head"], once["head"])
    training.load(before)
    training.step(tokens)
    assert all(torch.equal(once[name], one) for name, one in training.state().items())


def test_a_state_of_another_design_is_refused():
    with pytest.raises(ValueError, match=r"state: sites\.(phi|theta) is not in both"):
        train().load(train(residual="hc").state())


def test_experts_are_balanced_by_their_biases_alone():
    torch.manual_seed(0)
    preset = PRESETS.Preset(**{name: size for name, size in MICRO.items() if name != "n"})
    mixture = EXPERTS.Experts(preset)
    tokens = torch.randn(256, MICRO["C"])
    tokens[:, 0] = 1
    with torch.no_grad():
        # Experts 0 and 1 score higher, whatever the token.
        mixture.router[:2, 0] += 0.5
    mixture(tokens)
    start, mean = mixture.load.clone(), 256 * preset.active / preset.routed
    assert start.sum() == 256 * preset.active
    for _ in range(200):
        mixture.rebalance()
        mixture(tokens)
    assert start.max() > 1.8 * mean
    assert mixture.load.max() < 1.1 * mean
    assert mixture.load.min() > 0.9 * mean


def test_a_step_balances_by_its_own_load():
    training = train()
    training.step(training.batch(0))
    for _, mixture in training.model.mixtures():
        wanted = EXPERTS.RATE * (mixture.load.mean() - mixture.load).sign()
        assert torch.equal(mixture.balance, wanted) and wanted.any()


def test_an_expert_without_tokens_has_gradients_of_zero():
    training = train()
    state = training.state()
    state["sites.F.3.balance"][1] = -2
    training.load(state)
    found = training.gradients(training.batch(0))
    assert not found["sites.F.3.up"][1].any() and not found["sites.F.3.down"][1].any()
    assert found["sites.F.3.up"][0].any()


def test_a_choice_that_rounding_does_not_explain_is_refused():
    training = train()
    tokens = drawn()
    training.gradients(tokens)
    (name, chosen), *_ = training.choices().items()
    REFERENCE.step(training.state(), tokens, MICRO, "mhc", {name: chosen}, slack=1e-6)
    others = torch.ones(len(chosen), MICRO["routed"]).scatter(1, chosen, 0).topk(MICRO["active"]).indices
    with pytest.raises(ValueError, match="less than one left out"):
        REFERENCE.step(training.state(), tokens, MICRO, "mhc", {name: others}, slack=1e-6)
    with pytest.raises(ValueError, match="not sent to 2 different ones"):
        REFERENCE.step(training.state(), tokens, MICRO, "mhc", {name: chosen[:, :1].expand(-1, 2)}, slack=1)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("change", "residual", "toolkit", "recompute"),
    [
        *[({}, residual, "eager", recompute) for residual in ("residual", "hc", "mhc") for recompute in (False, True)],
        *[({"n": 2, "C": 256, "S": 64}, residual, "eager", False) for residual in ("residual", "hc", "mhc")],
        ({}, "mhc", "compiled", False),
    ],
)
def test_memory_kept_is_foretold(change, residual, toolkit, recompute, dtype):
    """What forward keeps for backward, within a tenth; of the head then only the loss' fp32 is left."""
    shape, design = {**TINY, **change}, Design(residual, toolkit, recompute)
    training = Training(shape, design, dtype, "cpu", 0)
    tokens = training.batch(0)
    training.gradients(tokens)
    _, kept = measured_memory._cpu_high_water(lambda: training.loss(tokens).grad_fn)
    gone = training.tokens * shape["vocabulary"] * (MEMORY.ITEM[dtype] + 8)
    assert kept == pytest.approx(MEMORY.activation_bytes(shape, design, dtype) - gone, rel=0.1)


@pytest.mark.parametrize(
    ("free", "said"),
    [
        (24e9, "27b needs .* GB, 487 GB of them for weights and optimiser; 24 GB are free; small fits"),
        (1e3, "0.001 MB are free; no preset fits"),
    ],
)
def test_what_does_not_fit_is_told_before_allocating(free, said):
    shape = {**PRESET["27b"].shape(), "n": 4}
    with pytest.raises(ValueError, match=said):
        MEMORY.check_fits(shape, "bf16", int(free))
    with pytest.raises(ValueError, match="27b needs"):
        train(shape)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"heads": 0}, "shape: heads = 0; expected at least 1"),
        ({"active": 5}, "shape: active = 5; expected at most routed = 4"),
        ({"rope": 3}, "shape: rope = 3; expected an even number"),
        ({"vocabulary": 255}, "shape: vocabulary = 255; expected at least 256"),
        ({"n": 3}, "n: expected 1, 2, 4 or 8 streams; got 3"),
    ],
)
def test_sizes_that_there_cannot_be_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        train({**MICRO, **change})


def test_names_that_there_are_not_are_refused():
    with pytest.raises(ValueError, match="shape: lacks heads, n"):
        train({name: size for name, size in MICRO.items() if name not in ("heads", "n")})
    with pytest.raises(ValueError, match="dtype: expected fp32 or bf16; got 'fp16'"):
        train(dtype="fp16")
    with pytest.raises(ValueError, match="residual: expected residual, hc, mhc; got 'mch'"):
        train(residual="mch")
    with pytest.raises(ValueError, match="toolkit: expected eager, compiled, triton, tilelang; got 'cuda'"):
        train(toolkit="cuda")
    with pytest.raises(ValueError, match="S = 99999999; expected less than the text's"):
        training = train()
        training.preset = PRESETS.Preset(**{**training.preset.shape(), "S": 99999999})
        training.batch(0)


def test_all_designs_learn_real_text():
    """`tiny`, 30 steps each; the script's exit code is 1 if one has not learnt."""
    script = ROOT.parents[1] / "benchmarks" / "designs_learn.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    means = [float(mean) for mean in re.findall(r"mean ([0-9.]+)", done.stdout)]
    assert len(means) == 4
    # Knowing how often each byte occurs gives about that; the text is sources.
    assert max(means) < 4, done.stdout
