"""Where the numbers of a report come from: weights, texts, versions, times."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rankcollapse.checkpoints.manifest import (
    HubSource,
    LocalSource,
    Manifest,
    Source,
    WheelSource,
)
from rankcollapse.config import Config
from rankcollapse.config_sections import HubText
from rankcollapse.tracking import Event

_SELF = "report"  # the rule that is under way when the report is written


@dataclass(frozen=True)
class Weights:
    """A row of the table of checkpoints."""

    folder: str
    model: str
    source: str
    tokenizer: str
    sha256: str


@dataclass(frozen=True)
class TextSource:
    """A row of the table of texts."""

    name: str
    source: str
    form: str


@dataclass
class Times:
    """How long the jobs of one rule took, and how much memory the largest of them."""

    rule: str
    count: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    longest_key: str = ""
    memory: float = 0.0  # MiB

    def add(self, event: Event) -> None:
        """Count one finished job."""
        seconds = event.seconds or 0.0
        self.count += 1
        self.seconds += seconds
        self.memory = max(self.memory, float(event.tags.get("peak_memory_mb", 0)))
        if seconds >= self.longest:
            self.longest, self.longest_key = seconds, event.key


@dataclass(frozen=True)
class Record:
    """What the events of a profile say.

    Attributes:
        times: of each rule, in the order in which they first ran; of each job its last success.
        total: of all rules together.
        failed: how many executions ended in an error.
        unfinished: how many executions have no end: killed, or under way.
        facts: version, commit and device, each with all values that occur.
    """

    times: list[Times] = field(default_factory=list)
    total: Times = field(default_factory=lambda: Times("all"))
    failed: int = 0
    unfinished: int = 0
    facts: dict[str, list[str]] = field(default_factory=dict)


def weights(config: Config, manifests: dict[str, Manifest]) -> list[Weights]:
    """Return a row for each folder of weights, in the order of the config."""
    rows = []
    for folder, (checkpoint, _) in config.folders().items():
        manifest = manifests[folder]
        tokenizer = getattr(checkpoint, "tokenizer", "its own")
        rows.append(
            Weights(
                folder, manifest.name, _origin(manifest.source), tokenizer, manifest.weights_sha256
            )
        )
    return rows


def _origin(source: Source) -> str:
    match source:
        case HubSource():
            return f"hub, {source.repository} at {source.revision}"
        case WheelSource():
            wheels = [f"{wheel.name} {wheel.version}" for wheel in source.distributions]
            return f"{'wheel' if len(wheels) == 1 else 'wheels'} {', '.join(wheels)}"
        case LocalSource():
            return f"folder {source.directory}"
        case _:
            return f"initialised with seed {source.seed}"


def texts(config: Config, commits: dict[str, str]) -> list[TextSource]:
    """Return a row for each text, in the order of the config."""
    return [
        TextSource(
            name,
            f"{text.repository} at {commits[name]}, {text.files}"
            if isinstance(text, HubText)
            else text.path.as_posix(),
            text.form,
        )
        for name, text in config.texts.items()
    ]


def record(events: Iterable[Event], profile: str) -> Record:
    """Sum up the events of a profile.

    Args:
        events: oldest first.
        profile: the others are passed over.
    """
    chosen = [event for event in events if event.profile == profile]
    jobs = [event for event in chosen if event.rule != _SELF]
    last = {(event.rule, event.key): event for event in jobs if event.status == "FINISHED"}
    result = Record(
        failed=sum(event.status == "FAILED" for event in jobs),
        unfinished=sum(event.status == "RUNNING" for event in jobs),
    )
    by_rule: dict[str, Times] = {}
    for event in last.values():
        by_rule.setdefault(event.rule, Times(event.rule)).add(event)
        result.total.add(event)
    result.times.extend(by_rule.values())
    for event in chosen:
        for name, value in _facts(event):
            values = result.facts.setdefault(name, [])
            if value not in values:
                values.append(value)
    return result


def _facts(event: Event) -> Iterator[tuple[str, str]]:
    for tag, value in event.tags.items():
        if tag.startswith("version/"):
            yield tag.removeprefix("version/"), value
    if "git_commit" in event.tags:
        changed = event.tags.get("git_dirty") == "true"
        yield "commit", event.tags["git_commit"] + (" with local changes" if changed else "")
    if "device" in event.tags:
        yield "device", event.tags["device"]
