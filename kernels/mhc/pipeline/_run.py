"""A run of the pipeline as the engine wants to hear of it."""

from perflab import Unsupported
from perflab.measure.pipeline import PipelineRun
from perflab.record import Span

from ..model.memory import sizes
from ..model.pipeline import run as run_pipeline


def run(design, schedule, shape, dtype, device, seed, steps):
    """`steps` steps by p processes.

    Fails: Unsupported for a depth or micro-batches that do not divide the model or its batch.
    """
    try:
        result = run_pipeline(
            shape, design, schedule, shape["p"], shape["m"], steps, dtype=dtype, device=device, seed=seed
        )
    except ValueError as error:
        raise Unsupported(str(error)) from error
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
            "link_bandwidth": result.link.bandwidth,
            "link_latency_s": result.link.latency,
            "processors": result.execution.processors or 0,
            "message_s": result.execution.message,
            "bubble": result.predicted.bubble,
            "exposed_s": sum(result.predicted.exposed_s),
            # The same simulation with what the actions took in the run itself, beside the other ranks.
            **({"replayed_s": result.replayed.step_s} if result.replayed else {}),
        },
    )
