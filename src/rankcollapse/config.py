"""What a profile's YAML file may say, and the jobs that follow from it.

Every key must be there and no other may: what a reader sees in the file is what runs.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError
from pydantic import model_validator as check
from pydantic_core import ErrorDetails

from rankcollapse.config_sections import (
    Checkpoint,
    Circle,
    Count,
    Evaluation,
    HubCheckpoint,
    LocalCheckpoint,
    Memorization,
    Name,
    Paths,
    RandomCheckpoint,
    Section,
    StudySequences,
    Text,
    Training,
    Variant,
    WheelCheckpoint,
)
from rankcollapse.errors import RankCollapseError

RELATIVE = ("mpnet", "xlnet")  # architectures whose scores have a relative position term


class ConfigError(RankCollapseError):
    """A config file says something that it may not, or not enough."""


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


class Config(Section):
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
    paths: Paths

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

    @check(mode="after")
    def _studies_are_sound(self) -> "Config":
        for number, part in enumerate(self.paths.studies):
            where = f"paths.studies.{number}"
            for name in part.checkpoints:
                _known(f"{where}.checkpoints", name, self.checkpoints)
                self._seeds_are_known(f"{where}.seeds", name, part.seeds)
                kind = self.checkpoints[name].model_type
                if "relative" in part.of and kind not in RELATIVE:
                    raise ValueError(
                        f"{where}.of: {name} has no relative term; {' and '.join(RELATIVE)} have"
                    )
        if missing := StudySequences.model_fields.keys() - self.studies().keys():
            raise ValueError(f"paths.studies: no checkpoint is studied for {min(missing)}")
        for study, folders in self.studies().items():
            for folder in folders:
                if folders.count(folder) > 1:
                    raise ValueError(f"paths.studies: {study} of {folder} is asked for twice")
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

    def studies(self) -> dict[str, list[str]]:
        """Return the folders of weights of each study of paths, in the order of the file."""
        found: dict[str, list[str]] = {}
        for part in self.paths.studies:
            folders = [f for name in part.checkpoints for f in self._folders(name, part.seeds)]
            for study in part.of:
                found.setdefault(study, []).extend(folders)
        return found

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


_KEYS = sorted({key for section in (*Section.__subclasses__(),) for key in section.model_fields})
