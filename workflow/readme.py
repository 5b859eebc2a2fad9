"""Take the results of a run into the README: `python workflow/readme.py`, after `make reproduce`.

Copies the verdicts and the README's figure to docs/results, and writes the table of results between
the README's markers. tests/test_readme.py fails when any of them has drifted.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from rankcollapse.intervals import ERROR_RATE
from rankcollapse.report.trained import TASKS
from rankcollapse.task_tables import PUBLISHED_SHAPES

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
README = ROOT / "README.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
VERDICTS = ("claims.csv", "curves.csv", "figure2.csv", "summary.json")
FIGURES = (
    *("figure2.png", "figure2_log.png", "readings.png", "texts.csv"),
    *("figure3.png", "figure3.csv", "figure4.png", "figure4_controls.png", "width_depth.png"),
)
CONTROLS = {
    "published": "as published: residual and trained gain cut",
    "residual_kept": "residual kept",
    "frozen": "exact terms of the output by length",
    "reread": "as published, classifier fitted anew",
    "layer_drop": "as published, trained with random paths",
    "pure": "trained without residuals",
}
NAMES = {"bert-base-cased": "BERT", "albert-base-v2": "ALBERT", "xlnet-base-cased": "XLNet"}
VARIANTS = {
    "san": "SAN",
    "san_mlp": "SAN + MLP",
    "san_skip": "SAN + skip",
    "transformer": "transformer",
}


def block(folder: Path) -> str:
    """Return the README's text of the results, computed from the verdicts in a folder."""
    points = pd.read_csv(folder / "figure2.csv")["verdict"].value_counts()
    inside, outside = points.get("reproduced", 0), points.get("not reproduced", 0)
    lines = [
        f"Of the {points.sum()} published points of Figure 2, {inside + outside} could be "
        f"compared: **{inside} reproduce, {outside} do not**. "
        f"{points.get('below precision floor', 0)} lie below the precision floor of float32 and "
        f"{points.get('not measured', 0)} need the trained checkpoints that `make paper` fetches.",
        "",
        "| at initialisation | comparable points | outside | chance of as many | layers outside |",
        "|---|---|---|---|---|",
    ]
    curves = pd.read_csv(folder / "curves.csv", dtype={"outside_layers": str})
    for curve in curves[curves["comparable"] > 0].itertuples():
        layers = curve.outside_layers if isinstance(curve.outside_layers, str) else ""
        lines.append(
            f"| {NAMES[curve.model]} {VARIANTS[curve.variant]} | {curve.comparable} "
            f"| {curve.not_reproduced} | {curve.p_value:.2g} | {layers} |"
        )
    return "\n".join([*lines, "", _xlnet(folder), "", *_claims(folder), "", _circle(folder)])


def _claims(folder: Path) -> Iterator[str]:
    """Yield the table of claim C6: how far accuracy falls from short to long paths."""
    claims = pd.read_csv(folder / "claims.csv")
    rows = claims[claims["claim"].str.startswith("C6, as-published")]
    (depth,) = {depth for _, depth, _ in PUBLISHED_SHAPES.values()}
    yield (
        "Do short paths carry trained networks (Figure 4)? Accuracy of short paths (lengths 1 to "
        f"{depth // 2}) minus that of long ones ({depth // 2 + 1} to {depth}), with its "
        f"{1 - ERROR_RATE:.0%} interval over training seeds:".replace("%", " %")
    )
    yield ""
    yield f"| paths | {' | '.join(TASKS.values()).lower()} |"
    yield f"|---|{'---|' * len(TASKS)}"
    for control, name in CONTROLS.items():
        cells = [_effect(rows[(rows["control"] == control) & (rows["task"] == t)]) for t in TASKS]
        yield f"| {name} | {' | '.join(cells)} |"


def _effect(rows: pd.DataFrame) -> str:
    measured = rows.dropna(subset="effect")
    if measured.empty:
        return "not measured"
    row = measured.iloc[0]
    if pd.isna(row["low"]):
        return f"{row['effect']:+.3f} ({row['verdict']})"
    return f"{row['effect']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"


def _circle(folder: Path) -> str:
    """Return how many runs of Figure 3 end in one point."""
    ends = pd.read_csv(folder / "figure3.csv")
    counts = ends.groupby(["reading", "variant"], sort=False)[["collapsed", "runs"]].sum()
    said = []
    for reading in dict.fromkeys(ends["reading"]):
        parts = [
            f"{VARIANTS[variant]} {count.collapsed} of {count.runs}"
            for variant, count in counts.loc[reading].iterrows()
        ]
        said.append(f"{reading.replace('-', ' ')}: {', '.join(parts)}")
    return f"Runs of the circle (Figure 3) that end in one point, all widths; {'; '.join(said)}."


def _xlnet(folder: Path) -> str:
    """Return how XLNet's distance from the published curve compares with what a text moves."""
    where = "variant == 'san_skip' and layer == 12 and weights == 'init'"
    point = pd.read_csv(folder / "figure2.csv").query(f"{where} and model == 'xlnet-base-cased'")
    text = pd.read_csv(folder / "texts.csv").query(f"{where} and checkpoint == 'xlnet-base-cased'")
    distance = (point["published_mean"] - point["measured_mean"]).item()
    return (
        "XLNet has no absolute positions: a piece that a text repeats is the same token to it. But "
        "of the two texts measured here (the same biographies in WikiBio's surface form and in "
        "ordinary spelling, cut by MiniLM's tokenizer) the second moves its SAN + skip curve by "
        f"{text['difference'].item():+.4f} at layer 12, while the published value lies "
        f"{distance:+.4f} from ours. What is left is not explained here; `make paper` takes "
        "XLNet's own word pieces and the WikiBio texts."
    )


def with_block(readme: str, text: str) -> str:
    """Return the README with `text` between its markers."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main() -> int:
    """Copy the results of the embedded profile and rewrite the README's block."""
    if subprocess.run(["dvc", "status", "--quiet"], cwd=ROOT, check=False).returncode:
        print("dvc status: the outputs are not those of dvc.lock; run `make reproduce` first")
        return 1
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in VERDICTS:
        shutil.copyfile(ROOT / "data/embedded/verdicts" / name, RESULTS / name)
    for name in FIGURES:
        shutil.copyfile(ROOT / "figures/embedded" / name, RESULTS / name)
    README.write_text(with_block(README.read_text(encoding="utf-8"), block(RESULTS)), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
