"""The tables of paths and bounds that the report reads."""

from rankcollapse import chained_verdicts, component_claims
from rankcollapse.bound_tables import BOUND_COLUMNS, FORM_COLUMNS, PIECE_COLUMNS
from rankcollapse.chained_tables import SUMMARY_COLUMNS
from rankcollapse.path_tables import (
    DECOMPOSITION_COLUMNS,
    HEAD_COLUMNS,
    LEFT_OUT_COLUMNS,
    SOURCE_COLUMNS,
)
from rankcollapse.rates import CURVE, ORDER_COLUMNS, RATE_COLUMNS
from rankcollapse.relative_tables import ASYMPTOTE_COLUMNS, CONTRACTION_COLUMNS, RELATIVE_COLUMNS

_MODEL = ("checkpoint", "weights")
_TERMS = (*_MODEL, "variant")

# File, rule, columns, those of them that are words.
TABLES: dict[str, tuple[str, str, list[str], tuple[str, ...]]] = {
    **{
        name: (f"paths/{name}.csv", "join_studies", columns, words)
        for name, columns, words in (
            ("decomposition", DECOMPOSITION_COLUMNS, _TERMS),
            ("mlp_source", DECOMPOSITION_COLUMNS, _TERMS),
            ("left_out", LEFT_OUT_COLUMNS, _TERMS),
            ("sources", SOURCE_COLUMNS, (*_TERMS, "source")),
            ("heads", HEAD_COLUMNS, _TERMS),
            ("bounds", BOUND_COLUMNS, (*_MODEL, "verdict")),
            ("bound_forms", FORM_COLUMNS, (*_MODEL, "form", "chain", "verdict")),
            ("bound_pieces", PIECE_COLUMNS, (*_TERMS, "piece", "side", "verdict")),
            ("relative", RELATIVE_COLUMNS, _MODEL),
            ("contraction", CONTRACTION_COLUMNS, _MODEL),
        )
    },
    "chained": (
        *("paths/chained.csv", "quartiles", SUMMARY_COLUMNS),
        (*_MODEL, "layers", "reading", "measure"),
    ),
    "rates": ("paths/rates/rates.csv", "rates", RATE_COLUMNS, (*CURVE, "word")),
    "orders": ("paths/rates/orders.csv", "rates", ORDER_COLUMNS, (*CURVE, "word")),
    "asymptote": ("paths/asymptote.csv", "asymptote", ASYMPTOTE_COLUMNS, ()),
    "chained_verdicts": (
        *("verdicts/chained_attention.csv", "judge", chained_verdicts.COLUMNS),
        (*_MODEL, "layers", "quartile", "verdict", "reason"),
    ),
    "component_claims": (
        *("verdicts/components.csv", "causes", component_claims.COLUMNS),
        ("claim", "source", "condition", "verdict"),
    ),
}
