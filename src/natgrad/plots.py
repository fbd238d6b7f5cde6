"""One look for all figures."""

from __future__ import annotations

from typing import Any

BLUE, PALE, ORANGE, GREY = "#1f5a92", "#9fc3e3", "#e8862e", "#8a8a8a"


def pyplot() -> Any:
    """matplotlib.pyplot without a display, in the package's style."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError('figures need matplotlib: pip install "natgrad[plots]"') from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "figure.dpi": 150,
            "font.size": 9,
            "axes.titlesize": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#e6e6e6",
            "legend.frameon": False,
            "savefig.bbox": "tight",
        }
    )
    return plt
