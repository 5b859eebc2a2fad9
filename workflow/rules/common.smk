import os
from datetime import datetime, timezone

from snakemake.exceptions import WorkflowError

from rankcollapse import jobs
from rankcollapse.config import parse_config
from rankcollapse.errors import RankCollapseError
from rankcollapse.sources import source_files

try:
    CONFIG = parse_config(config, where=" ".join(map(str, workflow.configfiles)))
except RankCollapseError as error:
    raise WorkflowError(str(error)) from None

PROFILE = CONFIG.profile
DATA = f"data/{PROFILE}"
FIGURES = f"figures/{PROFILE}"
LOGS = f"logs/{PROFILE}"
FOLDERS = CONFIG.folders()
RUNS = {run.name: run for run in CONFIG.runs()}
CURVES = f"{DATA}/residuals/curves.csv"
PUBLISHED = "data/published/figure2.csv"
VERDICTS = [f"{DATA}/verdicts/{name}.csv" for name in ("figure2", "curves")] + [
    f"{DATA}/verdicts/summary.json"
]

# One word for all jobs of this call; MLflow shows it as a tag.
os.environ.setdefault(
    "RANKCOLLAPSE_WORKFLOW",
    f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{os.getpid()}",
)


wildcard_constraints:
    folder="[a-z0-9][a-z0-9_-]*",
    text="[a-z0-9][a-z0-9_-]*",


def manifest(folder):
    """The file that stands for a folder of weights: it holds the hash of each of its files."""
    return f"{DATA}/checkpoints/{folder}/manifest.json"


def figure_files(name, *pages):
    """The files of a figure: all pages in one PDF, a PNG for each, and the numbers."""
    stems = [name, *(f"{name}_{page}" for page in pages)]
    pictures = [f"{FIGURES}/{name}.pdf", *(f"{FIGURES}/{stem}.png" for stem in stems)]
    return [*pictures, f"{FIGURES}/{name}.csv"]


FIGURE_FILES = {
    "figure1": figure_files("figure1"),
    "figure2": figure_files("figure2", "log"),
    "figure5": figure_files("figure5"),
    "readings": figure_files("readings"),
    "texts": figure_files("texts"),
}

# A store that cannot be reached loses nothing: the events stay, and one line says so.
FLUSH = "rankcollapse flush logs || true"


onsuccess:
    shell(FLUSH)


onerror:
    shell(FLUSH)
