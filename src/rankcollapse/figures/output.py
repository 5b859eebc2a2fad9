"""Figures as files: the same figure gives the same bytes."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure

from rankcollapse.figures import style
from rankcollapse.files import atomic_file

DOTS_PER_INCH = 200


def save(figures: Mapping[str, Figure], stem: Path) -> list[Path]:
    """Write the pages of a figure as one PDF and a PNG each, all of them or none.

    Args:
        figures: the pages in order, by name. The first is the figure itself and its name is not
            used: `{"": linear, "log": logarithmic}`.
        stem: the files' path without its ending: `figures/smoke/figure2`.

    Returns:
        The files written: `{stem}.pdf`, `{stem}.png`, `{stem}_{name}.png` for each further page.

    Raises:
        ValueError: there is no page.
        OSError: the folder cannot be written, or the disk is full; nothing is left behind.
    """
    if not figures:
        raise ValueError(f"no page to write to {stem}")
    first, *others = figures
    pdf = _with_ending(stem, ".pdf")
    pngs = {first: _with_ending(stem, ".png")}
    pngs |= {name: _with_ending(stem, f"_{name}.png") for name in others}
    with ExitStack() as stack:
        stack.enter_context(style.look())
        _write_pdf(figures, stack.enter_context(atomic_file(pdf)))
        for name, path in pngs.items():
            temporary = stack.enter_context(atomic_file(path))
            figures[name].savefig(temporary, dpi=DOTS_PER_INCH, metadata={"Software": None})
    return [pdf, *pngs.values()]


def _with_ending(stem: Path, ending: str) -> Path:
    return stem.with_name(stem.name + ending)


def _write_pdf(figures: Mapping[str, Figure], path: Path) -> None:
    with PdfPages(path, metadata={"CreationDate": None}) as pages:
        for figure in figures.values():
            pages.savefig(figure)
