"""The form that figures share: no background, one font, labels that can be read on any page."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go


def bare(**layout: Any) -> go.Figure:
    """An empty figure; `layout` adds to the form or replaces parts of it."""
    drawn = go.Figure()
    drawn.update_layout(
        margin={"l": 8, "r": 8, "t": 0, "b": 0}, template="none", hovermode="closest", dragmode=False,
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom"},
        font={"family": "system-ui, sans-serif", "size": 12},
        hoverlabel={"bgcolor": "#20242c", "bordercolor": "#20242c", "font": {"color": "#fff"}, "align": "left"},
    )  # fmt: skip
    return drawn.update_layout(layout)
