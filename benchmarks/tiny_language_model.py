"""A byte-level language model of this repository's own documents, trained with every toolkit: do the losses agree?

    python benchmarks/tiny_language_model.py [--toolkits eager compiled triton tilelang] [--steps 200] [--json FILE]

Each toolkit trains in a process of its own, from the same start on the same batches, with recomputation. Without a GPU
Triton's kernels are interpreted and TileLang's run as C code: slow, and the same numbers to rounding. Afterwards every
toolkit loads the checkpoint that the first one has trained, and must find the same loss there.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import perflab

ROOT = Path(__file__).resolve().parent.parent
TOOLKITS = ("eager", "compiled", "triton", "tilelang")
C, STREAMS, HEADS, BLOCKS, SEQUENCE = 16, 4, 2, 1, 12
LEARNING_RATE = 1e-2


class Attention(nn.Module):
    """Causal self-attention of one sequence."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(C, 3 * C), nn.Linear(C, C)

    def forward(self, v):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(-2, -3) for t in self.qkv(v).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(-2, -3).flatten(-2))


def ffn():
    """The other layer function."""
    return nn.Sequential(nn.Linear(C, 4 * C), nn.GELU(), nn.Linear(4 * C, C))


class Model(nn.Module):
    """Bytes to logits of the next byte, through a residual stream of n rows."""

    def __init__(self, toolkit):
        super().__init__()
        connections = perflab.load("mhc/hyper_connection", workspace=ROOT)
        self.expand, self.collapse = connections.expand, connections.collapse
        self.embedding, self.position = nn.Embedding(256, C), nn.Embedding(SEQUENCE, C)
        layers = [layer for _ in range(BLOCKS) for layer in (Attention(), ffn())]
        self.layers = connections.HyperConnection(layers, STREAMS, C, toolkit, recompute_block=2)
        self.head = nn.Linear(C, 256)

    def forward(self, text):
        h = self.embedding(text) + self.position.weight
        return self.head(self.collapse(self.layers(self.expand(h, STREAMS))))


def documents():
    """The repository's documents as bytes."""
    folders = [folder for folder in sorted(ROOT.iterdir()) if folder.is_dir() and not folder.name.startswith(".")]
    files = [*sorted(ROOT.glob("*.md")), *(folder / "README.md" for folder in folders)]
    return b"".join(path.read_bytes() for path in files if path.exists())


def batch(text, generator):
    """One sequence and the bytes that follow each of its own."""
    start = int(torch.randint(len(text) - SEQUENCE - 1, (1,), generator=generator))
    piece = text[start : start + SEQUENCE + 1]
    return piece[None, :-1], piece[None, 1:]


def loss_of(model, pair):
    """Mean cross-entropy in nats a byte."""
    given, wanted = pair
    return functional.cross_entropy(model(given).flatten(0, 1), wanted.flatten())


def train(toolkit, steps, checkpoint):
    """Losses of all steps; the trained parameters go to `checkpoint`, and are first loaded from there if it exists."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # The same text for all, whoever edits a document meanwhile: it lies beside the checkpoint.
    text = torch.tensor(list(checkpoint.with_name("text").read_bytes())).to(device)
    model, generator = Model(toolkit).to(device), torch.Generator().manual_seed(1)
    held_out = [batch(text, torch.Generator().manual_seed(seed)) for seed in range(2, 6)]
    optimiser = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
    start, losses = time.perf_counter(), []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = loss_of(model, batch(text, generator))
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    seconds = time.perf_counter() - start
    if not checkpoint.exists():
        torch.save(model.state_dict(), checkpoint)
    model.load_state_dict(torch.load(checkpoint))
    with torch.no_grad():
        loaded = sum(loss_of(model, pair).item() for pair in held_out) / len(held_out)
    return {"toolkit": toolkit, "losses": losses, "loaded_loss": loaded, "seconds": seconds, "device": device}


def in_its_own_process(toolkit, steps, checkpoint):
    """As `train`: a process either interprets Triton or compiles it."""
    interpret = {"TRITON_INTERPRET": "1"} if toolkit == "triton" and not torch.cuda.is_available() else {}
    command = [sys.executable, __file__, "--child", toolkit, "--steps", str(steps), "--checkpoint", str(checkpoint)]
    done = subprocess.run(command, env={**os.environ, **interpret}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{toolkit} failed:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    """Train, compare, print a table. Exit code 1 if the losses do not agree or do not fall."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toolkits", nargs="+", choices=TOOLKITS, default=TOOLKITS)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", choices=TOOLKITS, help=argparse.SUPPRESS)
    parser.add_argument("--checkpoint", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(train(options.child, options.steps, options.checkpoint)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "checkpoint.pt"
        checkpoint.with_name("text").write_bytes(documents())
        runs = [in_its_own_process(toolkit, options.steps, checkpoint) for toolkit in options.toolkits]
    if options.json:
        options.json.write_text(json.dumps(runs))
    print(f"{'toolkit':10} {'first':>8} {'last 20':>8} {'off at most':>12} {'checkpoint':>11} {'time':>8}")
    agree = True
    for run in runs:
        off = max(abs(one / first - 1) for one, first in zip(run["losses"], runs[0]["losses"], strict=True))
        last = sum(run["losses"][-20:]) / len(run["losses"][-20:])
        agree &= off < 0.02 and math.isclose(run["loaded_loss"], runs[0]["loaded_loss"], rel_tol=1e-4)
        agree &= last < run["losses"][0]
        print(
            f"{run['toolkit']:10} {run['losses'][0]:8.4f} {last:8.4f} {off:12.2e} "
            f"{run['loaded_loss']:11.6f} {run['seconds']:7.1f}s"
        )
    return 0 if agree else 1


if __name__ == "__main__":
    raise SystemExit(main())
