"""How far the text moves the curves, and what that says about XLNet's misses."""

import pandas as pd

from rankcollapse.figures.panels import select
from rankcollapse.figures.style import VARIANTS, label
from rankcollapse.report.findings import listed, number, percent

XLNET = "xlnet-base-cased"
_CURVE = ["checkpoint", "weights", "variant"]


def sensitivity(texts: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Return the ratio after the last layer on both texts, beside the published one.

    Args:
        texts: the numbers of the figure of texts.
        verdicts: `verdicts.COLUMNS`.

    Returns:
        checkpoint, weights, variant, layer, seeds; `first` and `second`, the ratio on each text;
        difference (second less first, the mean over the seeds), difference_low, difference_high;
        `published`, missing where the paper has no such curve. No row is below the floor.
    """
    first, second = compared_texts(texts)
    last = texts.groupby(["checkpoint", "weights"])["layer"].transform("max")
    rows = texts[texts["layer"] == last].dropna(subset="difference")
    rows = rows.rename(columns={f"{first}_mean": "first", f"{second}_mean": "second"})
    names = {"model": "checkpoint", "published_mean": "published"}
    published = verdicts.rename(columns=names)[[*_CURVE, "layer", "published"]]
    return rows.merge(published, on=[*_CURVE, "layer"], how="left")


def compared_texts(texts: pd.DataFrame) -> tuple[str, str]:
    """Return the names of the two texts, the reference first."""
    first, second = (name for name in texts.columns if name.endswith("_mean"))
    return first.removesuffix("_mean"), second.removesuffix("_mean")


def repeated_shares(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the mean share of repeated pieces of each model's text: checkpoint, text, share."""
    shares = select(curves, measure="repeated_share")
    return (
        shares.groupby(["checkpoint", "text"], sort=False)["mean"].mean().reset_index(name="share")
    )


def xlnet_sentences(
    verdicts: pd.DataFrame, texts: pd.DataFrame, curves: pd.DataFrame, *, borrowed: str | None
) -> list[str]:
    """Say what the two texts tell about XLNet's misses at initialisation.

    Args:
        verdicts: `verdicts.COLUMNS`.
        texts: the numbers of the figure of texts.
        curves: `tables.CURVE_COLUMNS`.
        borrowed: the checkpoint whose tokenizer stands for XLNet's own, if one does.

    Returns:
        Nothing where XLNet was not compared, or has no misses.
    """
    missed = select(verdicts, model=XLNET, weights="init", verdict="not reproduced")
    if missed.empty:
        return []
    counts = {name: int((missed["variant"] == name).sum()) for name in VARIANTS}
    where = listed(f"{count} on {VARIANTS[name].label}" for name, count in counts.items() if count)
    sentences = [
        f"{label(XLNET)} at initialisation has {len(missed)} points outside: {where}.",
        "Its input has no absolute positions, so equal pieces of a text start out as equal tokens, "
        "and the residual may depend on how often a text repeats itself.",
    ]
    if borrowed:
        sentences.append(
            f"Here its pieces are those of {borrowed}'s tokenizer, not of its own, which is one "
            "more way in which the text differs from the published one."
        )
    rows = sensitivity(texts, verdicts)
    rows = select(rows, checkpoint=XLNET, weights="init", variant="san_skip")
    if rows.empty:
        return [*sentences, "It was not measured on a second text."]
    return sentences + _step(rows.iloc[0], compared_texts(texts), repeated_shares(curves))


def _step(row: pd.Series, names: tuple[str, str], shares: pd.DataFrame) -> list[str]:
    share = select(shares, checkpoint=XLNET).set_index("text")["share"]
    first, second = (float(share.get(name, float("nan"))) for name in names)
    gap, step = row["published"] - row["first"], row["difference"]
    sentences = [
        f"{VARIANTS['san_skip'].label} after layer {row['layer']}: {number(row['first'])} on "
        f"{names[0]} (share of repeated pieces {number(first)}), {number(row['second'])} on "
        f"{names[1]} ({number(second)}), {number(row['published'])} published.",
        f"The published value lies {number(abs(gap), 2)} {_side(gap)} ours on {names[0]}; "
        f"going from {names[0]} to {names[1]} moves ours by {number(abs(step), 2)} "
        f"{'up' if step > 0 else 'down'}, {'towards' if step * gap > 0 else 'away from'} it.",
    ]
    if gap and first != second:
        with_repetition = (step > 0) == (second > first)
        sentences.append(
            f"So another text alone moves this curve by {percent(abs(step / gap))} of its "
            "distance from the published one, and the text with more repetition has the "
            f"{'higher' if with_repetition else 'lower'} ratio."
        )
    return sentences


def _side(gap: float) -> str:
    return "above" if gap > 0 else "below"
