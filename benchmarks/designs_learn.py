"""Does every residual design learn? Trains a preset on the kernels' own sources and prints losses and times.

    python benchmarks/designs_learn.py [DESIGN ...] [--preset tiny] [--steps 30] [--dtype fp32] [--device cpu]

A design is an implementation of `mhc/step`. They start from the same weights and see the same batches. Exit code 1 if
the mean of a design's last losses (20, or half of them if there are fewer than 40) is not below its first. Times are of
this process, one design after the other: `perflab run` compares designs in turn.
"""

import argparse
import sys
import time
from pathlib import Path

import torch

import perflab

ROOT = Path(__file__).resolve().parent.parent
DESIGNS = ("residual", "hc", "mhc_eager", "mhc_eager_recompute")


def train(design, shape, options):
    """Losses of the steps, and seconds of the median step."""
    training = perflab.load(f"mhc/step/{design}", workspace=ROOT).step(shape, options.dtype, options.device, seed=0)
    losses, seconds = [], []
    for index in range(options.steps):
        tokens = training.batch(index)
        start = time.perf_counter()
        losses.append(training.step(tokens).item())
        seconds.append(time.perf_counter() - start)
    return losses, sorted(seconds)[len(seconds) // 2]


def main():
    """A line a design. Exit code 1 if one has not learnt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("designs", nargs="*", default=DESIGNS)
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if options.steps < 2:
        parser.error(f"--steps: expected at least 2; got {options.steps}")
    presets = perflab.load("mhc/model/presets", workspace=ROOT).presets()
    if options.preset not in presets:
        parser.error(f"--preset: expected one of {', '.join(presets)}; got {options.preset!r}")
    shape = {**presets[options.preset].shape(), "n": 4}
    last = min(20, options.steps // 2)
    print(
        f"{options.preset}, {options.dtype} on {options.device}, {options.steps} steps, "
        f"{torch.get_num_threads()} threads"
    )
    learnt = True
    for design in options.designs:
        losses, seconds = train(design, shape, options)
        mean = sum(losses[-last:]) / last
        learnt &= mean < losses[0]
        print(
            f"{design:24} first loss {losses[0]:.3f}, last {last} mean {mean:.3f}, {seconds:.3f} s a step", flush=True
        )
    return 0 if learnt else 1


if __name__ == "__main__":
    sys.exit(main())
