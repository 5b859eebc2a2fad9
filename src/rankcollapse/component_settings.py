"""What a small network of `rankcollapse.components` consists of."""

from dataclasses import dataclass
from math import isfinite

from rankcollapse.vocabulary import require_known

NAMES = {
    "mlp": ("none", "gelu", "gelu_skip"),
    "norm": ("none", "layer_after", "layer_before", "rms_after", "rms_before"),
    "positions": ("none", "absolute", "relative", "rotary"),
    "mask": ("full", "causal", "window"),
}


@dataclass(frozen=True)
class Setting:
    """One network.

    Attributes:
        skip: scale s of attention's skip connection, 0 for none.
        mlp: "none", "gelu" (no skip of its own) or "gelu_skip"; 4 D units.
        norm: "none", or LayerNorm or RMSNorm, after (post-norm) or before (pre-norm) a sub-layer.
        positions: "none"; "absolute", N(0, 1) added to the input; "relative", N(0, 1) for each
            head and distance added to the scores of all layers; "rotary".
        mask: "full", "causal", or "window": 4 tokens to either side.
        query_key: scale of W_Q and of W_K, in units of 1/sqrt(D); scores go with its square.
        value: scale of W_V, in units of 1/sqrt(D).
        mlp_scale: scale of the MLP's two matrices, in units of 1/sqrt(D) and 1/sqrt(2 D).
        heads: H.
        width: D.
        depth: L.
        tokens: T.
    """

    skip: float = 0.0
    mlp: str = "none"
    norm: str = "none"
    positions: str = "none"
    mask: str = "full"
    query_key: float = 1.0
    value: float = 1.0
    mlp_scale: float = 1.0
    heads: int = 4
    width: int = 32
    depth: int = 12
    tokens: int = 24

    def __post_init__(self) -> None:
        """Raise ValueError for a network that there is not."""
        for name, known in NAMES.items():
            require_known(name, getattr(self, name), known)
        for name in ("heads", "width", "depth", "tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("skip", "query_key", "value", "mlp_scale"):
            if not isfinite(getattr(self, name)) or getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be finite, 0 or more")
        if self.width % (2 * self.heads):  # rotary turns pairs of features
            raise ValueError(
                f"{self.heads} heads need a width that is a multiple of {2 * self.heads}, "
                f"got {self.width}"
            )
