"""The plots of a promotion beside those of an evaluation: the candidate against production on the same problems."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tilewise.evaluate.plots import plot_efficiency
from tilewise.ops import OPS
from tilewise.plot_style import BLUE, INK, OTHER, RED, ROW_INCHES, axes_file, label_rows
from tilewise.registry.promotion._judgement import Judgement

N_WORST = 20


def write_comparison(folder: Path, judgement: Judgement) -> list[Path]:
    """Draw both models' efficiencies, slices and worst regressions; draw nothing without a production.

    Raises:
        OSError: The folder cannot be written.
    """
    if judgement.theirs is None:
        return []
    return [
        plot_efficiency(judgement.efficiencies(), folder / "efficiency.png"),
        _plot_slices(judgement, folder / "slices.png"),
        _plot_regressions(judgement, folder / "regressions.png"),
    ]


def _plot_slices(judgement: Judgement, path: Path) -> Path:
    """Draw the mean efficiency of both models in each judged slice; a refusing slice is red."""
    slices = judgement.gate.slices
    rows = np.arange(len(slices))
    colours = [RED if s.failed else BLUE for s in slices]
    means = [[100 * getattr(s, side)["mean"] for s in slices] for side in ("candidate", "production")]
    low = min([*means[0], *means[1], 99.0])
    with axes_file(path, max(4.0, 1 + 1.6 * ROW_INCHES * len(slices))) as axes:
        axes.barh(rows - 0.2, means[0], 0.4, color=colours, label="candidate")
        axes.barh(rows + 0.2, means[1], 0.4, color=OTHER, label="production")
        label_rows(axes, [f"{s.name} ({s.n_problems})" for s in slices])
        axes.set(xlim=(low - 0.1 * (100 - low), 100), xlabel="mean efficiency, % of the oracle", title="By slice")
        axes.figure.legend(loc="outside lower center", ncols=2)
    return path


def _plot_regressions(judgement: Judgement, path: Path) -> Path:
    """Draw the problems with the largest loss: from production's efficiency to the candidate's."""
    both = judgement.both
    lost = both["efficiency_production"].to_numpy(dtype=np.float64) - both["efficiency"].to_numpy(dtype=np.float64)
    worst = [i for i in np.argsort(-lost, kind="stable")[:N_WORST] if lost[i] > 0]
    names = OPS[judgement.ours.target.op].column_names()
    with axes_file(path, max(3.0, 1.2 + ROW_INCHES * len(worst))) as axes:
        for row, i in enumerate(worst):
            before, after = 100 * both["efficiency_production"].iloc[i], 100 * both["efficiency"].iloc[i]
            axes.plot([before, after], [row, row], color=RED, linewidth=1)
            axes.plot(before, row, "o", color=INK, markersize=4)
            axes.plot(after, row, "o", color=RED, markersize=4)
        labels = [" ".join(f"{n}{both[n].iloc[i]}" for n in names[:8]) for i in worst]
        label_rows(axes, labels)
        title = "Worst regressions: production (grey) to candidate (red)" if worst else "No problem loses"
        axes.set(xlabel="efficiency, % of the oracle", title=title)
    return path
