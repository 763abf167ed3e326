"""A run of the pipeline as the engine wants to hear of it."""

import math

from perflab import Unsupported
from perflab.measure.pipeline import PipelineRun
from perflab.record import Span

from ..model.memory import sizes
from ..model.pipeline import run as run_pipeline
from ..model.pipeline_stages import Job


def run(design, schedule, shape, dtype, device, seed, steps):
    """`steps` steps by p processes.

    Fails: Unsupported for a depth or micro-batches that do not divide the model or its batch.
    """
    given = (shape, design, schedule, shape["p"], shape["m"], steps)
    options = {"dtype": dtype, "device": device, "seed": seed}
    try:
        Job(*given, **options)
    except ValueError as error:
        raise Unsupported(str(error)) from error
    result = run_pipeline(*given, **options)
    preset, _ = sizes(shape)
    return PipelineRun(
        step_s=result.step_s,
        losses=result.losses,
        tokens=preset.tokens,
        flops=preset.flops_per_token() * preset.tokens,
        predicted_s=result.predicted_s,
        measured=[Span(*event) for event in result.timeline],
        predicted=[Span(*event) for event in result.predicted.timeline],
        assumed={
            "message_bytes": result.message_bytes,
            "message_s": result.execution.message,
            "link_latency_s": result.link.latency,
            # Where the ends' own work is all that a message takes, the link has no limit.
            **({"link_bandwidth": result.link.bandwidth} if math.isfinite(result.link.bandwidth) else {}),
            **({"processors": result.execution.processors} if result.execution.processors else {}),
            **{
                f"stage{stage}_{name}_s": seconds
                for stage, one in enumerate(result.durations)
                for name, seconds in (
                    ("forward", one.forward),
                    ("backward", one.backward_input),
                    ("update", one.update),
                )
            },
        },
        simulated={
            "bubble": result.predicted.bubble,
            "exposed_s": sum(result.predicted.exposed_s),
            # The same simulation with what the actions took in the run itself, beside the other ranks.
            **({"replayed_s": result.replayed.step_s} if result.replayed else {}),
        },
    )
