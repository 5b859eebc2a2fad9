"""What the report reads: tables, pictures and manifests of a finished profile.

A file that is missing or damaged is an error that names the file and what makes it.
"""

import base64
import json
import struct
from dataclasses import dataclass
from os.path import relpath
from pathlib import Path
from urllib.parse import quote

import pandas as pd
from pandas.api.types import is_numeric_dtype

from rankcollapse.checkpoints.manifest import Manifest, read_manifest
from rankcollapse.config import Config
from rankcollapse.errors import RankCollapseError
from rankcollapse.jobs import pages
from rankcollapse.report import path_inputs
from rankcollapse.tables import read_curves
from rankcollapse.task_tables import (
    ACCURACY_COLUMNS,
    CIRCLE_COLUMNS,
    CLAIM_COLUMNS,
    LENGTH_COLUMNS,
    typed,
)
from rankcollapse.verdicts import COLUMNS, CURVE, totals

_COUNTS = ["reproduced", "not_reproduced", "below_floor", "not_measured"]
_FIGURE_COLUMNS = {
    "figure1": ["path", "length", "norm", "residual_ratio"],
    "figure2": [
        *("checkpoint", "weights", "variant", "layer"),
        *("mean", "std", "seeds", "published_mean", "published_std"),
    ],
    "figure5": ["architecture", "heads", "layers", "length", "proportion"],
    "texts": ["checkpoint", "weights", "variant", "layer", "seeds", "difference"],
}
# The tables of the trained experiments: file, rule, columns, those of them that are words.
_TRAINED: dict[str, tuple[str, str, list[str], tuple[str, ...]]] = {
    "accuracy": (
        *("tasks/accuracy.csv", "accuracy", ACCURACY_COLUMNS),
        ("task", "reading", "control", "paths"),
    ),
    "circle": ("tasks/circle.csv", "join", CIRCLE_COLUMNS, ("reading", "variant")),
    "lengths": ("tasks/lengths.csv", "join", LENGTH_COLUMNS, ("task",)),
    "claims": (
        *("verdicts/claims.csv", "claims", CLAIM_COLUMNS),
        ("claim", "task", "control", "verdict", "rule"),
    ),
}
_PNG = b"\x89PNG\r\n\x1a\n"


class ReportError(RankCollapseError):
    """Something that the report shows is missing or damaged."""


@dataclass(frozen=True)
class Picture:
    """A page of a figure, as the report holds it.

    Attributes:
        source: the PNG as a data URI.
        width: in pixels.
        height: in pixels.
        pdf: where the vector drawing lies, seen from the report.
        csv: where the numbers lie, seen from the report.
    """

    source: str
    width: int
    height: int
    pdf: str
    csv: str


@dataclass(frozen=True)
class Inputs:
    """Everything of a profile that the report shows.

    Attributes:
        config: the profile.
        curves: `tables.CURVE_COLUMNS`.
        verdicts: `verdicts.COLUMNS`, one row for each published point.
        summary: one row for each published curve, as `verdicts.summarise` gives it.
        figures: the numbers of each figure, by its name.
        pictures: by the name of the page.
        manifests: by the name of the folder of weights.
        commits: of the texts that came from the hub.
        trained: the tables of the trained experiments: "accuracy", "circle", "lengths", "claims".
        paths: the tables of paths and bounds, by the names of `path_inputs.TABLES`.
    """

    config: Config
    curves: pd.DataFrame
    verdicts: pd.DataFrame
    summary: pd.DataFrame
    figures: dict[str, pd.DataFrame]
    pictures: dict[str, Picture]
    manifests: dict[str, Manifest]
    commits: dict[str, str]
    trained: dict[str, pd.DataFrame]
    paths: dict[str, pd.DataFrame]


def read_inputs(config: Config, output: Path) -> Inputs:
    """Read everything that the report of a profile shows, relative to the current folder.

    Args:
        config: the profile.
        output: where the report shall be; links in it are relative to that.

    Raises:
        RankCollapseError: a file is missing or damaged, or the tables of verdicts do not belong
            together; the message names the file and the rule that makes it.
    """
    data, figures = Path("data", config.profile), Path("figures", config.profile)
    verdicts = _table(data / "verdicts" / "figure2.csv", "verdict", COLUMNS)
    summary = _table(
        data / "verdicts" / "curves.csv",
        "verdict",
        [*CURVE, "points", "comparable", *_COUNTS, "p_value", "p_basis", "outside_layers"],
    )
    _check_agreement(verdicts, summary, data / "verdicts")
    return Inputs(
        config=config,
        curves=read_curves(_present(data / "residuals" / "curves.csv", "curves")),
        verdicts=verdicts,
        summary=summary.fillna({"outside_layers": ""}),
        figures={
            name: _table(figures / f"{name}.csv", name, columns)
            for name, columns in _FIGURE_COLUMNS.items()
        },
        pictures={
            page: _picture(figures / f"{page}.png", figure, output)
            for figure, of_figure in pages(config).items()
            for page in of_figure
        },
        manifests={
            folder: read_manifest(
                _present(data / "checkpoints" / folder / "manifest.json", "weights").parent
            )
            for folder in config.folders()
        },
        commits={
            name: _commit(data / "checkpoints" / f"text-{name}" / "source.json")
            for name, text in config.texts.items()
            if text.source == "hub"
        },
        trained={name: _trained(data, name) for name in _TRAINED},
        paths={name: _numbers(data, *table) for name, table in path_inputs.TABLES.items()},
    )


def _present(path: Path, rule: str) -> Path:
    if not path.is_file():
        raise ReportError(f"{path}: no such file; rule {rule} of the workflow makes it")
    return path


def _damaged(path: Path, rule: str, problem: str) -> ReportError:
    return ReportError(
        f"{path}: {problem}; delete it, and rule {rule} of the workflow makes it again"
    )


def _table(path: Path, rule: str, columns: list[str]) -> pd.DataFrame:
    """Read a CSV that must have at least these columns."""
    _present(path, rule)
    try:
        frame = pd.read_csv(path, dtype={"outside_layers": str})
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        problem = " ".join(str(error).split())
        raise _damaged(path, rule, f"not a CSV table ({problem})") from None
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise _damaged(path, rule, f"has no column {', '.join(missing)}")
    return frame


def _trained(data: Path, name: str) -> pd.DataFrame:
    """Read a table of the trained experiments."""
    frame = _numbers(data, *_TRAINED[name])
    return typed(frame) if name == "accuracy" else frame


def _numbers(
    data: Path, file: str, rule: str, columns: list[str], words: tuple[str, ...]
) -> pd.DataFrame:
    """Read a table whose numbers must be numbers."""
    frame = _table(data / file, rule, columns)
    for column in set(columns) - set(words):
        if len(frame) and not is_numeric_dtype(frame[column]):
            raise _damaged(data / file, rule, f"column {column} holds something that is no number")
    return frame


def _check_agreement(verdicts: pd.DataFrame, summary: pd.DataFrame, folder: Path) -> None:
    """Refuse counts of another table: the report would contradict itself."""
    counts = totals(verdicts)
    path = _present(folder / "summary.json", "verdict")
    try:
        same = json.loads(path.read_bytes()) == counts
    except ValueError as error:
        raise _damaged(path, "verdict", f"not JSON ({error})") from None
    if not same:
        raise _damaged(path, "verdict", "does not count the verdicts of figure2.csv beside it")
    curves = summary.set_index(CURVE)[_COUNTS].to_dict("index")
    expected = {
        (model, weights, variant): of_curve
        for model, of_model in counts.items()
        if model != "overall"
        for weights, of_weights in of_model.items()
        for variant, of_curve in of_weights.items()
    }
    if curves != expected:
        path = folder / "curves.csv"
        raise _damaged(path, "verdict", "does not count the verdicts of figure2.csv beside it")


def _picture(path: Path, figure: str, output: Path) -> Picture:
    """Read a page of a figure; all its pages share one drawing and one table."""
    content = _present(path, figure).read_bytes()
    if not content.startswith(_PNG) or len(content) < 24:
        raise _damaged(path, figure, "not a PNG picture")
    width, height = struct.unpack(">II", content[16:24])
    links = [
        quote(
            Path(
                relpath(_present(path.with_name(f"{figure}{ending}"), figure), output.parent)
            ).as_posix()
        )
        for ending in (".pdf", ".csv")
    ]
    encoded = base64.b64encode(content).decode("ascii")
    return Picture(f"data:image/png;base64,{encoded}", width, height, *links)


def _commit(path: Path) -> str:
    try:
        return str(json.loads(_present(path, "text").read_bytes())["revision"])
    except (ValueError, KeyError, TypeError):
        raise _damaged(path, "text", "does not name the commit of the text") from None
