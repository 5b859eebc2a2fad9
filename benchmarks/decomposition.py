"""What a decomposition by path length costs: in forward passes of the same model, and in memory.

A sweep applies block l to l terms, without queries and keys: (L + 1) / 2 passes of an attention
sub-layer at least. The pass that it is compared with multiplies with oneDNN too.

Shapes: B sequences, T tokens.
"""

import resource
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from figure import Figure

from rankcollapse import decompose
from rankcollapse.checkpoints import load_model, make_random
from rankcollapse.products import OneDNN

ARCHITECTURES = Path(__file__).parent.parent / "config" / "architectures"
LIMITS = {"bert-base-cased": 10.0, "all-mpnet-base-v2": 10.0, "all-minilm-l6-v2": 8.0}
MEMORY_GB = 4.0  # BERT-base at 32 x 128


def run_decomposition(*, quick: bool) -> list[Figure]:
    """Time decompositions, each in a process of its own, and return them beside their limits."""
    figures = []
    for name, limit in {"tiny-bert": 10.0}.items() if quick else LIMITS.items():
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            figures += pool.submit(_figures, name, limit, quick=quick).result()
    return figures


def _figures(name: str, limit: float, *, quick: bool) -> list[Figure]:
    torch.set_num_threads(1)
    with TemporaryDirectory(prefix="rankcollapse-") as folder:
        checkpoint = Path(folder) / name
        make_random(ARCHITECTURES / f"{name}.json", 0, checkpoint, name=name)
        model = load_model(checkpoint)
    shape = (2, 16) if quick else (32, 128)
    ids = torch.randint(5, 30, shape, generator=torch.Generator().manual_seed(0))

    def forward() -> None:
        with torch.no_grad(), OneDNN():
            model(input_ids=ids)

    def sweep() -> None:
        for _ in decompose(model, input_ids=ids).parts():
            pass

    one, whole = (_median(work) for work in (forward, sweep))
    kilo = 1e9 if sys.platform == "darwin" else 1e6
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / kilo
    part = "decomposition, 1 thread"
    return [
        Figure(part=part, name=f"{name}, forward passes", value=whole / one, unit="", limit=limit),
        Figure(part=part, name=f"{name}, memory", value=memory, unit="GB", limit=MEMORY_GB),
    ]


def _median(work: Callable[[], None]) -> float:
    seconds = []
    for _ in range(3):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds)
