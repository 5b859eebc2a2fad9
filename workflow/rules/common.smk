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
RESIDUALS = [f"{DATA}/residuals/{name}.parquet" for name in RUNS]
VERDICTS = [f"{DATA}/verdicts/{name}.csv" for name in ("figure2", "curves")] + [
    f"{DATA}/verdicts/summary.json"
]
CLAIMS = f"{DATA}/verdicts/claims.csv"
CHAINED_VERDICTS = f"{DATA}/verdicts/chained_attention.csv"
COMPONENT_CLAIMS = f"{DATA}/verdicts/components.csv"
SCORES = [f"{DATA}/tasks/scores/{name}.csv" for name in CONFIG.trainings]
TASK_TABLES = ("accuracy", "circle", "trajectories", "lengths")
STUDIES = CONFIG.studies()
PURE_SAN = f"{DATA}/paths/bounds/pure-san"
CHAINED = [f"{DATA}/paths/chained/{folder}.parquet" for folder in STUDIES["chained"]]
JOINED = {table: study for study, names in jobs.STUDY_TABLES.items() for table in names}
# What is read by its name: by figures, verdicts and the report.
TABLES = {
    "curves": f"{DATA}/residuals/curves.csv",
    "published": "data/published/figure2.csv",
    "published_chained": "data/published/chained_attention.csv",
    **{name: f"{DATA}/tasks/{name}.csv" for name in TASK_TABLES},
    **{name: f"{DATA}/paths/{name}.csv" for name in JOINED},
    "chained": f"{DATA}/paths/chained.csv",
    "rates": f"{DATA}/paths/rates/rates.csv",
    "orders": f"{DATA}/paths/rates/orders.csv",
    "asymptote": f"{DATA}/paths/asymptote.csv",
    "components": f"{DATA}/paths/components.parquet",
    "component_claims": COMPONENT_CLAIMS,
}

# One word for all jobs of this call; MLflow shows it as a tag.
os.environ.setdefault(
    "RANKCOLLAPSE_WORKFLOW",
    f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{os.getpid()}",
)


wildcard_constraints:
    folder="[a-z0-9][a-z0-9_-]*",
    text="[a-z0-9][a-z0-9_-]*",
    training="[a-z0-9][a-z0-9_-]*",
    reading="as-published|as-described",


def manifest(folder):
    """The file that stands for a folder of weights: it holds the hash of each of its files."""
    return f"{DATA}/checkpoints/{folder}/manifest.json"


def task_text(training):
    """The text that a training memorises, if it does."""
    return (
        jobs.text_path(CONFIG, CONFIG.memorization.text) if memorises(training) else []
    )


def task_tokenizer(training):
    """The checkpoint that splits it."""
    return manifest(CONFIG.memorization.tokenizer) if memorises(training) else []


def task_flags(training):
    """The flags that name both."""
    if not memorises(training):
        return ""
    folder = os.path.dirname(task_tokenizer(training))
    return f"--text {task_text(training)} --tokenizer {folder}"


def memorises(training):
    return CONFIG.trainings[training].task == "memorization"


def joined(table):
    """The tables that are put one below the other."""
    if table != "lengths":
        return [
            f"{DATA}/tasks/{table}/{reading}.csv" for reading in CONFIG.circle.epochs
        ]
    return [
        f"{DATA}/tasks/lengths/{name}.csv"
        for name, training in CONFIG.trainings.items()
        if training.task == "sorting"
        and (training.training, training.reading) == ("residual", "as-published")
    ]


def architecture_modules(folder):
    """The modules that know a checkpoint's architecture."""
    kind = FOLDERS[folder][0].model_type
    return f"architectures.{kind}", f"architectures.parts.{kind}"


def studied(study, table):
    """The tables of that name of one study's checkpoints."""
    folders = [f"{DATA}/paths/{study}/{folder}" for folder in STUDIES[study]]
    if study == "bounds":
        folders = [PURE_SAN, *folders]
    return [f"{folder}/{table}.csv" for folder in folders]


def figure_files(name, pages):
    """The files of a figure: all pages in one PDF, a PNG for each, and the numbers."""
    pictures = [f"{FIGURES}/{name}.pdf", *(f"{FIGURES}/{page}.png" for page in pages)]
    return [*pictures, f"{FIGURES}/{name}.csv"]


FIGURE_FILES = {
    name: figure_files(name, pages) for name, pages in jobs.pages(CONFIG).items()
}

# A store that cannot be reached loses nothing: the events stay, and one line says so.
FLUSH = "rankcollapse flush logs || true"


onsuccess:
    shell(FLUSH)


onerror:
    shell(FLUSH)
