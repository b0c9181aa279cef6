"""Plots as inline SVG, drawn by matplotlib without a display and without pyplot's global state."""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from tasks.report.measured import LENGTHS, Measured
from tasks.report.numbers import coverage, histogram, over_time

COLORS: Mapping[str, str] = {
    "prompt": "#8a8f98",
    "opener": "#a626a4",
    "reasoning": "#0e7c86",
    "closer": "#a626a4",
    "content": "#2e7d32",
    "tool_calls": "#b26a00",
    "end": "#a626a4",
    "unknown": "#c62828",
}
"""Of the segments, as on a terminal (`deployments/cli/console.py`)."""

SETTINGS: Mapping[str, Any] = {
    "svg.fonttype": "none",  # text stays text: small, and found by the browser's search
    "svg.hashsalt": "rawseq",  # equal plots are equal bytes
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a8f98",
}


@contextmanager
def _axes(width: float, height: float, panels: int = 1) -> Iterator[tuple[list[Any], list[str]]]:
    """Yield axes to draw on, and a list that holds the SVG afterwards."""
    svg: list[str] = []
    with matplotlib.rc_context(dict(SETTINGS)):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield list(np.atleast_1d(figure.subplots(1, panels))), svg
        sink = io.StringIO()
        figure.savefig(sink, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = sink.getvalue()
    svg.append(text[text.index("<svg") :])


def _count(value: float, _: int = 0) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _between(value: float, place: int) -> str:
    del place
    text = _count(value)
    return text if text[0] in "25" else ""


def draw_lengths(measured: Measured) -> str:
    """Return the length histograms of prompt, reasoning and content, side by side."""
    with _axes(10.5, 2.6, len(LENGTHS)) as (panels, svg):
        for axes, kind in zip(panels, LENGTHS, strict=True):
            edges, rows = histogram(measured.lengths[kind])
            axes.bar(edges[:-1], rows, np.diff(edges), align="edge", color=COLORS[kind], linewidth=0)
            axes.set_xscale("log")
            filled = np.flatnonzero(rows)
            if filled.size:
                axes.set_xlim(edges[filled[0]] / 1.2, edges[-1] * 1.1)
            axes.set_title(kind)
            axes.set_xlabel("ids")
            axes.xaxis.set_major_formatter(FuncFormatter(_count))
            few = filled.size and edges[-1] < 20 * edges[filled[0]]  # hardly a decade: 2 and 5 have room
            axes.xaxis.set_minor_formatter(FuncFormatter(_between if few else lambda value, place: ""))
            axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        panels[0].set_ylabel("rows")
    return svg[0]


def draw_coverage(measured: Measured) -> str:
    """Return the share of supervised ids that the k most frequent ids cover."""
    curve = coverage(measured.frequencies)
    if not curve.size:
        return ""
    with _axes(5.1, 2.8) as ((axes,), svg):
        axes.plot(np.arange(1, curve.size + 1), curve, color=COLORS["reasoning"], linewidth=2)
        axes.set_xscale("log")
        axes.set_ylim(0, 1.02)
        axes.set_title("vocabulary coverage")
        axes.set_xlabel("most frequent ids")
        axes.set_ylabel("share of output ids")
        axes.xaxis.set_major_formatter(FuncFormatter(_count))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(alpha=0.3)
    return svg[0]


def draw_time(measured: Measured) -> str:
    """Return output ids per second over the time in which rows were finished."""
    edges, tokens = over_time(measured.timed)
    if not edges.size:
        return ""
    with _axes(5.1, 2.8) as ((axes,), svg):
        begun = edges[0]
        scale, unit = next(
            (size, name)
            for size, name in ((86_400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"))
            if edges[-1] - begun >= 2 * size or size == 1
        )
        axes.stairs(tokens / np.diff(edges), (edges - begun) / scale, fill=True, color=COLORS["content"])
        axes.set_ylim(bottom=0)
        axes.set_title("tokens over time")
        axes.set_xlabel(f"{unit} since {datetime.fromtimestamp(begun, UTC):%Y-%m-%d %H:%M:%S} UTC")
        axes.set_ylabel("output ids per second")
        axes.yaxis.set_major_formatter(FuncFormatter(_count))
    return svg[0]
