"""One look for all figures.

Sizes are those of a two-column paper. Colours differ in lightness, so they stay apart when
printed in grey, and no two share a marker or a line style. Plain dashes are left for what others
have published.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rankcollapse.vocabulary import require_known

SINGLE_COLUMN = 3.35  # inches
DOUBLE_COLUMN = 6.9  # inches
TEXT_SIZE = 8.5  # points
SMALL_TEXT_SIZE = 7.5  # points; nothing is smaller
ACCENT = "#C23B22"
MUTED = "#8A8A8A"

_SETTINGS: dict[Any, Any] = {
    "font.family": "STIXGeneral",
    "mathtext.fontset": "stix",
    "font.size": TEXT_SIZE,
    "axes.titlesize": TEXT_SIZE,
    "axes.labelsize": TEXT_SIZE,
    "legend.fontsize": SMALL_TEXT_SIZE,
    "xtick.labelsize": SMALL_TEXT_SIZE,
    "ytick.labelsize": SMALL_TEXT_SIZE,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.2,
    "lines.markeredgewidth": 0.5,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "pdf.fonttype": 42,  # TrueType: text in the PDF can be searched and edited
}


@contextmanager
def look() -> Iterator[None]:
    """Draw what is in the block with the look of this project, whatever the user's settings."""
    import matplotlib as mpl  # not for those who only ask how a curve is called

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        yield


@dataclass(frozen=True)
class Curve:
    """How one curve is called and drawn.

    Attributes:
        label: the name that a reader sees.
        color: a hex colour.
        linestyle: as matplotlib takes it.
        marker: as matplotlib takes it.
    """

    label: str
    color: str
    linestyle: str | tuple[int, tuple[float, ...]]
    marker: str

    def line(self) -> dict[str, Any]:
        """Return the keyword arguments of `Axes.plot` for this curve."""
        return {
            "label": self.label,
            "color": self.color,
            "linestyle": self.linestyle,
            "marker": self.marker,
        }


_DOTS = (0, (1.0, 1.2))
_DASH_DOT = (0, (4.0, 1.2, 1.0, 1.2))
_DASH_DOT_DOT = (0, (4.0, 1.2, 1.0, 1.2, 1.0, 1.2))
_LONG_DASHES = (0, (7.0, 1.5))

VARIANTS = {
    "san": Curve("SAN", ACCENT, _DOTS, "o"),
    "san_mlp": Curve("SAN + MLP", "#E5B53D", _DASH_DOT, "^"),
    "san_skip": Curve("SAN + skip", "#2B9CB3", _DASH_DOT_DOT, "s"),
    "transformer": Curve("Transformer", "#1D2142", "-", "D"),
}

MODELS = {
    "bert-base-cased": Curve("BERT", "#1D2142", "-", "o"),
    "albert-base-v2": Curve("ALBERT", "#8E2C6B", _DOTS, "s"),
    "xlnet-base-cased": Curve("XLNet", "#2F7FB8", _DASH_DOT, "^"),
    "all-mpnet-base-v2": Curve("MPNet", "#E0873A", _DASH_DOT_DOT, "D"),
    "all-minilm-l6-v2": Curve("MiniLM", "#A9CF54", _LONG_DASHES, "v"),
}

CONTROLS = {  # of the trained experiments, in a sentence
    "published": "as published",
    "residual_kept": "residual kept",
    "frozen": "frozen",
    "reread": "re-read",
    "layer_drop": "layer drop",
    "pure": "no residual",
}


def variant(name: str) -> Curve:
    """Return how a variant is called and drawn.

    Raises:
        ValueError: there is no such variant.
    """
    require_known("variant", name, VARIANTS)
    return VARIANTS[name]


def model(checkpoint: str) -> Curve:
    """Return how a checkpoint is called and drawn; one that a user brings is grey, by its name."""
    return MODELS.get(checkpoint, Curve(checkpoint, MUTED, "-", "x"))


def label(checkpoint: str) -> str:
    """Return the name of a checkpoint that a reader sees: "BERT" for bert-base-cased."""
    return model(checkpoint).label
