"""Caches of keys and values by context, one sequence in 16 bit: every head's, grouped heads', MLA's.

Bytes are 2 L T H bytes-per-element batch where every head is cached; with more sequences they grow in proportion. The
marks are the two sizes that are often quoted for L = 32 layers and H = 4096.
"""

from __future__ import annotations

from typing import Any

import pandas
import plotly.graph_objects as go

from perflab.present import units

from . import _subject

PAGE, ORDER = "Inference", 20
CONTEXTS = [2**power for power in range(10, 18)]
LAYERS, HEADS, HEAD_DIM, GROUPS = 32, 32, 128, 8


def inference_cache(frame: pandas.DataFrame, about: dict[str, Any]) -> go.Figure | None:
    """Lines by kind of cache; None in a workspace without this subject."""
    inference, model = _subject.module("inference"), _subject.module("overhead")
    if inference is None or model is None:
        return None
    preset = model.presets()[_subject.MODEL]
    every = inference.multi_head(HEADS, HEAD_DIM)
    kinds = {
        f"every head, L={LAYERS} H={HEADS * HEAD_DIM}": (every, LAYERS, "#d55e00", "solid"),
        f"{GROUPS} of {HEADS} heads, same model": (inference.multi_head(GROUPS, HEAD_DIM), LAYERS, "#e69f00", "solid"),
        f"MLA, same layers, {preset.kv_rank} + {preset.rope}": (
            inference.latent(preset.kv_rank, preset.rope), LAYERS, "#0072b2", "solid"),
        f"{_subject.MODEL} if every head were cached": (
            inference.multi_head(preset.heads, preset.head_dim), preset.layers, "#d55e00", "dot"),
        f"{_subject.MODEL}'s MLA": (inference.latent(preset.kv_rank, preset.rope), preset.layers, "#0072b2", "dot"),
    }  # fmt: skip
    quoted = {context: inference.cache_bytes(every, LAYERS, context) for context in (8 * 1024, 128 * 1024)}
    told = "; ".join(f"{context // 1024}K tokens {size:,} B = {size // 2**30} GiB" for context, size in quoted.items())
    figure = _subject.figure(430, [f"computed: L={LAYERS}, H={HEADS * HEAD_DIM}, 16 bit: {told}"])
    for name, (elements, layers, colour, dash) in kinds.items():
        sizes = [inference.cache_bytes(elements, layers, context) for context in CONTEXTS]
        figure.add_scatter(
            x=CONTEXTS, y=sizes, name=name, mode="lines", line={"color": colour, "dash": dash, "width": 2},
            hoverinfo="text", hovertext=[f"{name}: {units.size(size)} at {context} tokens"
                                         for size, context in zip(sizes, CONTEXTS, strict=True)],
        )  # fmt: skip
    figure.add_scatter(
        x=list(quoted), y=list(quoted.values()), mode="markers+text", textposition="top left", showlegend=False,
        text=[units.size(size) for size in quoted.values()], marker={"size": 10, "color": "#d55e00"},
        name="quoted sizes", hoverinfo="skip",
    )  # fmt: skip
    ticks = [f"{context // 1024}K" for context in CONTEXTS]
    figure.update_xaxes(
        type="log", tickvals=CONTEXTS, ticktext=ticks, title={"text": "tokens of context"}, fixedrange=True
    )
    figure.update_yaxes(type="log", tickformat="~s", ticksuffix="B", fixedrange=True, automargin=True)
    figure.update_layout(margin={"t": 130})
    return figure
