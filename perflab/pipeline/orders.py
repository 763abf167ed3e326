"""Orders written out here, and how layers are shared among stages."""

from __future__ import annotations

from perflab.pipeline.actions import BACKWARD, FORWARD, Action, Order, PipelineError


def one_forward_one_backward(p: int, m: int) -> Order:
    """1F1B of m micro-batches on p ranks with a stage each.

    Fails: PipelineError for fewer micro-batches than ranks.
    """
    if not 1 <= p <= m:
        raise PipelineError(f"1F1B: expected at least as many micro-batches as ranks, and one; got p={p}, m={m}")
    return tuple(tuple((action,) for action in _rank(stage, p, m)) for stage in range(p))


def _rank(stage: int, p: int, m: int) -> list[Action]:
    ahead = p - 1 - stage
    steady = [
        Action(stage, kind, i + shift) for i in range(m - ahead) for kind, shift in ((FORWARD, ahead), (BACKWARD, 0))
    ]
    first = [Action(stage, FORWARD, i) for i in range(ahead)]
    last = [Action(stage, BACKWARD, i) for i in range(m - ahead, m)]
    return [*first, *steady, *last]


def layers_per_stage(layers: int, stages: int) -> int:
    """Layers of a stage. Fails: PipelineError where the stages do not divide them, with the numbers that do."""
    divisors = [number for number in range(1, layers + 1) if layers % number == 0]
    if stages not in divisors:
        raise PipelineError(f"pipeline: {stages} stages do not divide {layers} layers; these do: {divisors}")
    return layers // stages
