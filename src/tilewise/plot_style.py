"""The one style of all plots: PNG files that light and dark pages show, with colours for the colour-blind.

The background is transparent and the ink a mid grey. Drawing needs no display, and leaves matplotlib's global state
alone. Equal figures give equal bytes. Needs matplotlib, so it is imported only where something is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler
from PIL import Image

from tilewise.files import write_bytes

INK = "#808080"  # contrast 3.9 on white, 4.4 on the site's dark pages
PALETTE = (  # Paul Tol's bright, and two: every kind of sight tells them apart, on white and on dark grey
    "#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#9955FF", "#993300",
)  # fmt: skip
BLUE, RED = PALETTE[:2]
OTHER = "#BBBBBB"  # the rest, and the reference
DENSITY = ListedColormap(matplotlib.colormaps["viridis"](np.linspace(0.2, 0.95, 64)))  # no end fades on either page
SMALL = 7  # points: many labels
ROW_INCHES = 0.2  # height of a bar with a readable label
_WIDTH = 8.0  # inches
_COLOURS = 128  # of the PNG's palette; this divides the size by three without a visible difference
_STYLE: dict[Any, Any] = {  # keys are a literal type of matplotlib's stubs
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.grid": True,
    "axes.prop_cycle": cycler(color=PALETTE),
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "figure.dpi": 100,
    **{
        key: INK
        for key in (
            "text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color",
            "grid.color",
        )
    },
    **{key: "none" for key in ("figure.facecolor", "axes.facecolor")},
}  # fmt: skip


@contextmanager
def figure_file(path: Path, width: float = _WIDTH, height: float = 5.0) -> Iterator[Figure]:
    """Yield a figure of so many inches, to be drawn on inside the block; write it to `path` at the block's end.

    Raises:
        OSError: the file cannot be written.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        canvas = FigureCanvasAgg(figure)
        yield figure
        canvas.draw()  # type: ignore[no-untyped-call]
    image, buffer = Image.fromarray(np.asarray(canvas.buffer_rgba())), io.BytesIO()  # type: ignore[no-untyped-call]
    image.quantize(_COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    write_bytes(path, buffer.getvalue())


@contextmanager
def axes_file(path: Path, height: float = 5.0) -> Iterator[Axes]:
    """Yield the only axes of a figure, 8 inches wide; otherwise as :func:`figure_file`."""
    with figure_file(path, height=height) as figure:
        yield figure.add_subplot()


def label_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows 0, 1, ... of horizontal bars or dots, the first at the top."""
    axes.set_yticks(range(len(names)), names, fontsize=SMALL)
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")


def draw_density(axes: Axes, x: npt.ArrayLike, y: npt.ArrayLike, counted: str, *, cells: int = 36) -> None:
    """Count points in hexagons, on logarithmic axes, and draw the scale beside.

    Args:
        axes: of a figure.
        x: horizontal coordinates.
        y: vertical coordinates.
        counted: the scale's title: what a point is, in the plural.
        cells: hexagons along an axis.
    """
    drawn = axes.hexbin(
        x, y, xscale="log", yscale="log", gridsize=cells, mincnt=1, bins="log", cmap=DENSITY, linewidths=0.1
    )  # fmt: skip
    figure = axes.figure
    assert isinstance(figure, Figure)
    bar = figure.colorbar(drawn, ax=axes, pad=0.01, aspect=35)
    bar.outline.set_visible(False)
    bar.ax.set_title(counted, fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL)
