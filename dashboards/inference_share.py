"""What one decoding step moves, by what it is of, and the residual sites' share of it.

Each sequence of the batch gets one token. Bytes of weights and caches follow from the model's sizes; a batch meets more
experts, and reads each once. Those of the sites are counted, Triton's kernels at the step's own tokens, phi included.
Above a bar stands the sites' share of its bytes; in brackets, what their launches would cost beside the time that all
bytes take.
"""

from __future__ import annotations

from typing import Any

import pandas
import plotly.graph_objects as go

from perflab.present import units

from . import _subject

PAGE, ORDER = "Inference", 21
CONTEXT = 4096
PARTS = {
    "shared": ("weights of every step", "#7f7f7f"), "experts": ("experts met", "#e69f00"),
    "cache": ("caches", "#0072b2"), "sites": ("residual sites", "#d55e00"),
}  # fmt: skip


def inference_share(frame: pandas.DataFrame, about: dict[str, Any]) -> go.Figure | None:
    """Stacked bars by batch; None in a workspace without this subject."""
    inference, overhead, traffic = (_subject.module(name) for name in ("inference", "overhead", "traffic"))
    if inference is None or overhead is None or traffic is None:
        return None
    preset, a = (one := overhead.project(_subject.MODEL, _subject.quoted())).preset, one.assumptions
    batches = traffic.Decoding(preset.C).batches()
    steps = [inference.decode(preset, batch, CONTEXT) for batch in batches]
    runs = sorted({row["run"] for row in traffic.rows() if row.get("decode")})
    figure = _subject.figure(
        440,
        [
            f"{_subject.MODEL} at {CONTEXT} tokens of context, 16 bit; the sites' bytes and launches are counted "
            f"in {', '.join(runs)}, the rest is computed from sizes; phi alone is "
            f"{units.size(inference.phi_bytes(preset))}",
            f"projected on {_subject.MACHINE}: launches at {units.seconds(a.launch)} each, bytes at "
            f"{a.achieved:.0%} of {units.size(a.bandwidth, '/s')}; plain residuals would move "
            f"{units.size(steps[0].plain)} at batch {batches[0]}, where sites move {units.size(steps[0].sites)}",
        ],
        barmode="stack", bargap=0.4,
    )  # fmt: skip
    labels = [f"batch {batch}" for batch in batches]
    totals = [sum(getattr(step, part) for part in PARTS) for step in steps]
    for part, (name, colour) in PARTS.items():
        sizes = [getattr(step, part) for step in steps]
        figure.add_bar(
            x=labels, y=sizes, name=name, marker={"color": colour}, hoverinfo="text",
            hovertext=[f"{name}: {units.size(size)}, {size / total:.2%}"
                       for size, total in zip(sizes, totals, strict=True)],
        )  # fmt: skip
    figure.add_scatter(
        x=labels, y=totals, mode="text", textposition="top center", showlegend=False, hoverinfo="skip", name="share",
        text=[f"{step.share:.1%}<br>({_launching(step, total, a):.0%})"
              for step, total in zip(steps, totals, strict=True)],
    )  # fmt: skip
    figure.update_xaxes(fixedrange=True)
    figure.update_yaxes(
        tickformat="~s", ticksuffix="B", fixedrange=True, automargin=True, range=[0, 1.25 * max(totals)]
    )
    return figure


def _launching(step: Any, total: float, a: Any) -> float:
    """The sites' further launches over the time that the step's bytes take."""
    return float(step.launches * a.launch / (total / (a.bandwidth * a.achieved)))
