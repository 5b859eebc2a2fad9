"""What evaluating and measuring cost, as multiples of the forward passes that they contain.

Everything is measured in one process, in turns, so that a slow spell of the machine hits all
sides of a ratio; the medians are compared.

Shapes: B sequences, T tokens, D features, I features inside the MLP.
"""

import io
import statistics
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from conditions import CONFIG, ROOT, Size
from figure import Figure
from torch import Tensor
from torch.nn.functional import linear

from rankcollapse import ablate
from rankcollapse.checkpoints import load_model, make_random
from rankcollapse.config import load_config
from rankcollapse.evaluate import BATCH, Text, evaluate, read_batch
from rankcollapse.products import OneDNN
from rankcollapse.residuals import residuals
from rankcollapse.vocabulary import MEASURES, VARIANTS


@dataclass(frozen=True)
class Work:
    """A random BERT and what it reads, in a folder that takes what it makes."""

    folder: Path
    tokenizer: Path
    text: Text
    sequences: int
    tokens: int
    spectral_sequences: int

    @property
    def checkpoint(self) -> Path:
        """Return the folder of the model."""
        return self.folder / "bert"

    @property
    def states(self) -> Path:
        """Return the folder of the hidden states."""
        return self.folder / "states"

    def evaluate(self) -> None:
        """Do what `rankcollapse evaluate` does, loading the model included."""
        evaluate(
            self.checkpoint,
            self.states,
            text=self.text,
            tokenizer=self.tokenizer,
            variants=VARIANTS,
            readings=["as-published"],
            precision="float32",
            sequences=self.sequences,
            tokens=self.tokens,
            device="cpu",
        )

    def measure(self, only: tuple[str, ...]) -> None:
        """Do what `rankcollapse residuals` does."""
        table = self.folder / "table.parquet"
        residuals(self.states, table, spectral_sequences=self.spectral_sequences, only=only)

    def ids(self) -> Tensor:
        """Return the tokens, [B, T]."""
        batch = read_batch(
            self.checkpoint,
            self.tokenizer,
            self.text,
            sequences=self.sequences,
            tokens=self.tokens,
        )
        return torch.from_numpy(batch.ids)


def run_ratios(size: Size, tokenizer: Path, *, threads: int) -> list[Figure]:
    """Time the parts of one BERT's evaluation, and return their ratios beside their limits.

    Args:
        size: what is computed.
        tokenizer: checkpoint that lends its tokenizer.
        threads: for torch; a job of the workflow has one.
    """
    torch.set_num_threads(threads)
    # The lines of progress would drown the table.
    with TemporaryDirectory(prefix="rankcollapse-") as name, redirect_stderr(io.StringIO()):
        work = Work(
            folder=Path(name),
            tokenizer=tokenizer,
            text=Text("wikibio", ROOT / "data" / "corpus" / "biographies.txt", "wikibio"),
            sequences=size.sequences,
            tokens=size.tokens,
            spectral_sequences=load_config(CONFIG).spectral_sequences,
        )
        config = ROOT / "config" / "architectures" / f"{size.bert}.json"
        make_random(config, 0, work.checkpoint, name=size.bert)
        return _ratios(work, size.repetitions, threads)


def _ratios(work: Work, repetitions: int, threads: int) -> list[Figure]:
    model, ids = load_model(work.checkpoint), work.ids()
    layer = _Layer(model.config, rows=ids.numel())
    seconds = _medians(
        {
            "products": partial(layer.multiply, torch.mm),
            "oneDNN": layer.multiply_by_onednn,
            **{variant: partial(_forward, model, ids, variant) for variant in VARIANTS},
            "evaluate": work.evaluate,
            "composite": partial(work.measure, ("composite_ratio",)),
            "all": partial(work.measure, MEASURES),
        },
        repetitions,
    )
    bare = sum(seconds[variant] for variant in VARIANTS)
    layers: int = model.config.num_hidden_layers
    rate = layer.flops / seconds["products"]
    reached = layers * (layer.flops + layer.attention_flops(ids.shape[1])) / seconds["transformer"]
    part = f"BERT, {threads} thread{'s' if threads > 1 else ''}"
    return [
        Figure(
            part=part,
            name="rate of a bare forward pass / rate of its products",
            value=reached / rate,
            unit="",
            limit=0.8,
            at_least=True,
            note=f"{reached / 1e9:.0f} / {rate / 1e9:.0f} GFLOP/s",
        ),
        Figure(
            part=part,
            name="rate of oneDNN / rate of torch.mm, same products",
            value=seconds["products"] / seconds["oneDNN"],
            unit="",
        ),
        *(
            Figure(
                part=part,
                name=f"evaluation and {name} / bare passes",
                value=(seconds["evaluate"] + seconds[key]) / bare,
                unit="",
                limit=limit,
                note=f"{seconds['evaluate']:.1f} s + {seconds[key]:.2f} s / {bare:.1f} s",
            )
            for name, key, limit in (
                ("composite ratio", "composite", 1.3),
                ("all measures", "all", 2.0),
            )
        ),
    ]


class _Layer:
    """The products of one block with its weights."""

    def __init__(self, config: Any, *, rows: int):
        width: int = config.hidden_size
        inner: int = config.intermediate_size
        self.width, self.rows = width, rows
        generator = torch.Generator().manual_seed(0)
        self.narrow = torch.randn(rows, width, generator=generator)
        self.wide = torch.randn(rows, inner, generator=generator)
        self.square = torch.randn(width, width, generator=generator)
        self.up = torch.randn(width, inner, generator=generator)
        self.down = torch.randn(inner, width, generator=generator)
        self.flops = 2 * rows * (4 * width * width + 2 * width * inner)

    def attention_flops(self, tokens: int) -> int:
        """Return those of scores and weighted sums in one block."""
        return 4 * self.rows * tokens * self.width

    def multiply(self, product: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Multiply by query, key, value, output and the two matrices of the MLP."""
        with torch.inference_mode():
            for _ in range(4):
                product(self.narrow, self.square)
            product(self.narrow, self.up)
            product(self.wide, self.down)

    def multiply_by_onednn(self) -> None:
        """Do the same as `evaluate` does it."""
        with OneDNN():
            self.multiply(lambda x, weight: linear(x, weight.T))


def _forward(model: Any, ids: Tensor, variant: str) -> None:
    with torch.inference_mode(), ablate(model, variant):
        for part in torch.split(ids, BATCH):
            model(input_ids=part)


def _medians(works: dict[str, Callable[[], None]], repetitions: int) -> dict[str, float]:
    """Return the median seconds of each work; one turn before is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repetitions + 1):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}
