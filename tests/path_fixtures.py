"""Plausible tables of paths and bounds that no model gave, and pictures that no one drew."""

import struct
import zlib
from itertools import product
from math import comb
from pathlib import Path

import numpy as np
import pandas as pd

from rankcollapse import chained_tables, chained_verdicts, rates, relative_tables
from rankcollapse.bound_tables import (
    BOUND_COLUMNS,
    CHAINS,
    CUBIC,
    DOBRUSHIN,
    FORM_COLUMNS,
    LEAST,
    MOST,
    PIECE_COLUMNS,
    PURE_SAN,
)
from rankcollapse.component_claims import EFFECTS
from rankcollapse.path_tables import (
    DECOMPOSITION_COLUMNS,
    HEAD_COLUMNS,
    LEFT_OUT_COLUMNS,
    SOURCE_COLUMNS,
)
from rankcollapse.report.path_inputs import TABLES
from rankcollapse.tables import write_csv

BERT, XLNET, MPNET, MINILM = (
    "bert-base-cased",
    "xlnet-base-cased",
    "all-mpnet-base-v2",
    "all-minilm-l6-v2",
)
FIGURES = ("figure6", "decomposition", "heads", "bounds", "pieces", "rates", "components")
# Shares of the last state by length. MiniLM's carry 90 % of 1.06 with lengths 0 and 1 (0.95 of it);
# MPNet's magnitudes sum to 1.8, of which 1.7 are at lengths 0 to 2.
SHARES = {
    (MINILM, "pretrained", None): (0.7, 0.31, 0.02, -0.03),
    (MPNET, "pretrained", None): (-0.4, 0.8, 0.5, 0.1),
    (BERT, "init", 0): (0.96, 0.04, 0.0, 0.0),
    (BERT, "init", 1): (0.94, 0.06, 0.0, 0.0),
}
SOURCE_SHARES = (0.8, 0.9, 0.6, 0.5)  # of the embedding, by length
HEADS, LAYERS = 12, 3


def named(model):
    return dict(zip(("checkpoint", "weights", "seed"), model, strict=True))


def decomposition(shares=None):
    """Return the terms of one layer before the last and of the last; both variants alike."""
    rows = [
        named(model)
        | {"variant": variant, "layer": layer, "length": length, "share": share}
        | {"norm": 80 / 3**length, "residual": 70 / 3**length}
        | {"rank_one_distance": 0.9 / 4**length, "paths": comb(layer, length) * HEADS**length}
        for model, of_model in (shares or SHARES).items()
        for variant in ("transformer", "san_skip")
        for layer in (LAYERS - 1, LAYERS)
        for length, share in enumerate(of_model[: layer + 1])
    ]
    return pd.DataFrame(rows)[DECOMPOSITION_COLUMNS]


def mlp_source():
    """Return the last terms with a tenth of the share at length 0 that was at length 1."""
    rows = decomposition()
    rows = rows[(rows["layer"] == LAYERS) & (rows["variant"] == "transformer")].copy()
    rows.loc[rows["length"] == 0, "share"] += 0.1
    rows.loc[rows["length"] == 1, "share"] -= 0.1
    return rows


def left_out():
    rows = [
        named(model)
        | {"variant": variant, "length": length, "cosine": 1 - 0.3 / 10**length}
        | {"similarity_error": 0.1 / 10**length}
        for model in SHARES
        for variant in ("transformer", "san_skip")
        for length in range(LAYERS + 1)
    ]
    return pd.DataFrame(rows)[LEFT_OUT_COLUMNS]


def sources():
    rows = []
    for model, length in product(SHARES, range(LAYERS + 1)):
        of_embedding = SOURCE_SHARES[length]
        rest = 1 - of_embedding
        shares = {"embedding": of_embedding, "attention": 0.1 * rest, "mlp": 0.2 * rest}
        shares["norm"] = 0.7 * rest
        rows += [
            named(model) | {"variant": "transformer", "length": length, "source": s, "share": share}
            for s, share in shares.items()
        ]
    return pd.DataFrame(rows)[SOURCE_COLUMNS]


def heads():
    """Return for MiniLM two heads in each of three layers; the last head has most of length 1."""
    rows = []
    for layer, head, length in product(range(1, LAYERS + 1), (0, 1), range(LAYERS + 1)):
        share = length / (2 * LAYERS)
        if length == 1:
            share = 0.75 if (layer, head) == (LAYERS, 1) else 0.05
        named_head = {"variant": "transformer", "layer": layer, "head": head, "length": length}
        rows.append(named((MINILM, "pretrained", None)) | named_head | {"share": share})
    return pd.DataFrame(rows)[HEAD_COLUMNS]


def bound_pieces():
    """Return pieces of three layers: the skip of BERT keeps a tenth, that of MiniLM nothing."""
    limits = {("skip", LEAST): -1.0, ("skip", MOST): 0.2, ("attention norm", MOST): 0.4}
    limits |= {("mlp", MOST): 2.0, ("mlp norm", MOST): -0.1}
    measured = {"skip": 0.01, "attention norm": 0.1, "mlp": -0.5, "mlp norm": -0.3}
    rows = []
    for model, layer in product(((BERT, "init", 0), (MINILM, "pretrained", None)), (1, 2, 3)):
        for (piece, side), bound in limits.items():
            nothing = side == LEAST and model[0] == MINILM
            margin = abs(bound - measured[piece])
            rows.append(
                named(model)
                | {"variant": "transformer", "layer": layer, "piece": piece, "side": side}
                | {"measured_log10": measured[piece], "bound_log10": -np.inf if nothing else bound}
                | {"margin": np.nan if nothing else margin}
                | {"verdict": "vacuous" if nothing else "holds"}
            )
    return pd.DataFrame(rows)[PIECE_COLUMNS]


def chained():
    """Return boxes whose median falls tenfold with each depth, the coefficient's from 0.9."""
    rows = []
    models = {(BERT, "init"): 3, (MINILM, "pretrained"): 1}
    settings = product(models.items(), ("as-published", "as-described"), ("distance", "dobrushin"))
    for ((checkpoint, weights), seeds), reading, measure in settings:
        for depth in range(1, LAYERS + 1):
            median = (0.9 if measure == "dobrushin" else 0.2) / 10 ** (depth - 1)
            spread = {"p05": 0.5, "q1": 0.8, "median": 1, "q3": 1.2, "p95": 1.5}
            rows.append(
                {"checkpoint": checkpoint, "weights": weights, "layers": "any", "seeds": seeds}
                | {"reading": reading, "measure": measure, "depth": depth, "pairs": 2000 * seeds}
                | {name: factor * median for name, factor in spread.items()}
                | {"floor": 3.6e-15, "below_floor": 0}
            )
    return pd.DataFrame(rows)[chained_tables.SUMMARY_COLUMNS]


def chained_verdict_rows():
    """Return 72 verdicts: of initialised BERT 8 of 9 reproduce, 27 are round-off; 36 missing."""
    rows = []
    for weights, depth, quartile in product(
        ("init", "pretrained"), range(1, 13), chained_tables.QUARTILES
    ):
        verdict = "not measured"
        if weights == "init":
            verdict = "reproduced" if depth < 4 else "below precision floor"
            verdict = "not reproduced" if (depth, quartile) == (3, "q3") else verdict
        rows.append(
            {"checkpoint": BERT, "weights": weights, "layers": "any", "depth": depth}
            | {"quartile": quartile, "published": 0.1 / depth, "measured": 0.11 / depth}
            | {"low": 0.09 / depth, "high": 0.12 / depth, "seeds": 3, "pairs": 6000}
            | {"verdict": verdict, "reason": "a reason"}
        )
    return pd.DataFrame(rows)[chained_verdicts.COLUMNS]


def bound_forms():
    """Return MiniLM, whose layer 1 of 2 each one-step bound but the paper's holds, and pure SAN."""
    rows = []
    margins = dict(zip((*CUBIC, DOBRUSHIN), (4.0, 3.0, 2.5, 2.0, 1.5, 1.0, 0.5), strict=True))
    for model, layer, (form, margin), chain in product(
        ((MINILM, "pretrained", None), (PURE_SAN, "init", 0)), (1, 2), margins.items(), CHAINS
    ):
        holds = model[0] == PURE_SAN or (layer == 1 and chain == CHAINS[0])
        verdict = "holds" if holds else "vacuous"
        if model[0] == MINILM and form == "paper":
            verdict = "condition not met"
        met = verdict != "condition not met"
        rows.append(
            named(model)
            | {"layer": layer, "form": form, "chain": chain, "measured_log10": -1.0}
            | {"bound_log10": margin - 1 if met else np.nan, "trivial_log10": 2.0}
            | {"verdict": verdict, "margin": margin if met else np.nan, "below_floor": False}
        )
    return pd.DataFrame(rows)[FORM_COLUMNS]


def bounds():
    rows = [
        named(model)
        | {"layer": layer, "measured_log10": -1.0, "bound_log10": 0.5 * layer}
        | {"dobrushin_log10": 1.0, "beta": 2.0 * layer, "gamma": 1.5, "max_D": 3.0}
        | {"verdict": "holds"}
        for model, layer in product(((MINILM, "pretrained", None), (PURE_SAN, "init", 0)), (1, 2))
    ]
    return pd.DataFrame(rows)[BOUND_COLUMNS]


ORDERS = {  # order, low, high, word
    (MINILM, "pretrained", "san", "wikibio"): (2.97, 2.91, 3.03, "cubic"),
    (MPNET, "pretrained", "san", "wikibio"): (0.98, 0.974, 0.985, "exponential"),
    (MPNET, "pretrained", "san_skip", "wikibio"): (1.17, 1.15, 1.2, "exponential"),
    (MPNET, "pretrained", "san", "plain"): (0.97, 0.96, 0.98, "exponential"),
    (BERT, "init", "san", "wikibio"): (np.nan, np.nan, np.nan, "not measured"),
}


def orders():
    rows = []
    for (checkpoint, weights, variant, text), (order, low, high, word) in ORDERS.items():
        measured = not np.isnan(order)
        rows.append(
            {"checkpoint": checkpoint, "weights": weights, "variant": variant, "text": text}
            | {"reading": "as-published", "precision": "float64", "order": order, "low": low}
            | {"high": high, "word": word, "first": 3 if measured else np.nan, "seeds": 1}
            | {"last": 4 if measured else np.nan, "sequences": 32, "factor": 0.002}
        )
    return pd.DataFrame(rows)[rates.ORDER_COLUMNS]


def rates_by_layer():
    found = orders()
    rows = [found.assign(layer=layer, rate=found["order"]) for layer in (3, 4)]
    return pd.concat(rows, ignore_index=True)[rates.RATE_COLUMNS]


def relative():
    """Return MPNet's ratios: halved at each layer with its term, cubed without."""
    rows = []
    for scale, sequence in product((1.0, 0.0), (0, 1)):
        ratio = 0.4
        for layer in range(4):
            before, ratio = ratio, (ratio / 2 if scale else ratio**3) if layer else ratio
            rate = np.log(ratio) / np.log(before) if layer else np.nan
            below = scale == 0 and layer == 3 and sequence == 1
            rows.append(
                {"checkpoint": MPNET, "weights": "pretrained", "seed": None, "scale": scale}
                | {"layer": layer, "sequence": sequence, "ratio": ratio}
                | {"rate": np.nan if below else rate}
            )
    return pd.DataFrame(rows)[relative_tables.RELATIVE_COLUMNS]


def contraction():
    """Return two heads, the second with three times the weight: means 0.55 and 0.75."""
    rows = [
        {"checkpoint": MPNET, "weights": "pretrained", "seed": None, "scale": scale}
        | {"layer": layer, "head": head, "tau": (0.6, 0.8)[head]}
        | {"second_eigenvalue": (0.4, 0.6)[head], "weight": (1.0, 3.0)[head]}
        for scale, layer, head in product((1.0, 0.0), (1, 2, 3), (0, 1))
    ]
    return pd.DataFrame(rows)[relative_tables.CONTRACTION_COLUMNS]


def asymptote():
    logs = {0.0: (-0.5, -2.0, -7.0, -22.0), 1.0: (-0.5, -0.8, -1.0, -1.2)}
    rows = [
        {"heads": 1, "scale": scale, "seed": 0, "layer": layer, "log10_ratio": log}
        | {"rate": log / of_scale[layer - 1] if layer else np.nan, "factor": 0.63}
        | {"bound_log10": log + 2 + layer if scale == 0 and layer else np.nan}
        | {"tau": 0.7 if scale else np.nan, "limit": 0.6 if scale else np.nan}
        for scale, of_scale in logs.items()
        for layer, log in enumerate(of_scale)
    ]
    return pd.DataFrame(rows)[relative_tables.ASYMPTOTE_COLUMNS]


CLAIMS = [  # claim, source, network, rule, effect, low, high, verdict
    ("attention alone is doubly exponential", "Dong", "skip=0, baseline", "fast", 3.0, 2.9, 3.1),
    ("skip stops it", "Dong", "skip=1, baseline", "stops", -0.02, -0.03, -0.01),
    ("skip stops it", "Dong", "skip=0.1, baseline", "stops", -1.0, -1.1, -0.9),
    ("skip ends the cubic rate", "here", "skip=1, baseline", "slow", 1.0, 0.9, 1.1),
    ("MLP slows it", "Dong", "mlp=gelu_skip, baseline", "later", 2.0, 1.0, 3.0),
    (
        "rotary positions end the cubic rate",
        "here",
        "positions=rotary, baseline",
        "slow",
        *(2.0,) * 3,
    ),
    ("skip 1 slows it on average", "here", "skip=1, factorial", "later on average", 5.0, 4.0, 6.0),
]
VERDICTS = ("supported", "supported", "opposite", "supported", "supported", "not supported")
_RELATIVE = (  # of MPNet
    ("with its relative term the collapse is exponential", 0.873, 0.849, 0.897),
    ("without its relative term the collapse is doubly exponential", 0.549, 0.469, 0.629),
)


def component_claims():
    rows = [
        (claim, source, f"{network}: {EFFECTS[rule]}", effect, low, high, verdict)
        for (claim, source, network, rule, effect, low, high), verdict in zip(
            CLAIMS, (*VERDICTS, "supported"), strict=True
        )
    ]
    rows += [
        (claim, relative_tables.SOURCE, f"{MPNET}, pretrained", effect, low, high, "supported")
        for claim, effect, low, high in _RELATIVE
    ]
    return pd.DataFrame(rows, columns=relative_tables.CLAIM_COLUMNS)


def tables():
    """Return every table by its name in `path_inputs.TABLES`."""
    made = {
        "decomposition": decomposition(),
        "mlp_source": mlp_source(),
        "left_out": left_out(),
        "sources": sources(),
        "heads": heads(),
        "bound_pieces": bound_pieces(),
        "chained": chained(),
        "chained_verdicts": chained_verdict_rows(),
        "bounds": bounds(),
        "bound_forms": bound_forms(),
        "rates": rates_by_layer(),
        "orders": orders(),
        "relative": relative(),
        "contraction": contraction(),
        "asymptote": asymptote(),
        "component_claims": component_claims(),
    }
    assert made.keys() == TABLES.keys()
    return made


def figure_numbers():
    """Return what figures/decomposition.csv holds of the terms."""
    rows = decomposition()
    rows = rows[rows["layer"] == LAYERS].rename(columns={"variant": "curve"})
    model = ["checkpoint", "weights", "curve"]
    means = rows.groupby([*model, "length"], sort=False).agg(
        share=("share", "mean"), seeds=("share", "size"), paths=("paths", "first")
    )
    means["share_of_paths"] = means["paths"] / means.groupby(model)["paths"].transform("sum")
    return means.reset_index()


def write(data, tables):
    """Write tables where a profile has them."""
    for name, table in tables.items():
        write_csv(data / TABLES[name][0], table)


def write_pictures(figures, pages):
    """Write a PNG of its own for each page of the figures here, and their drawings and numbers."""
    for figure in FIGURES:
        for page in pages[figure]:
            (figures / f"{page}.png").write_bytes(picture(page))
        figures.joinpath(f"{figure}.pdf").write_bytes(b"%PDF-1.4\n")
        figures.joinpath(f"{figure}.csv").write_text("nothing\n")


def picture(name):
    """Return a grey PNG of 640 x 200 pixels, its grey given by the name."""
    width, height = 640, 200
    grey = zlib.crc32(name.encode()) % 256
    lines = (b"\0" + bytes([grey]) * width) * height
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = [
        (b"IHDR", header),
        (b"tEXt", b"Title\0" + name.encode()),
        (b"IDAT", zlib.compress(lines)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


def build(config):
    """Make the tables and pictures of a profile in the current folder."""
    from rankcollapse.jobs import pages

    write(Path("data", config.profile), tables())
    write_pictures(Path("figures", config.profile), pages(config))
