"""Checkpoints and data files from the Hugging Face hub, at one commit, whole or not at all."""

import fnmatch
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from rankcollapse.checkpoints.manifest import (
    CONFIG,
    PICKLE,
    TOKENIZER,
    TOKENIZER_FILES,
    WEIGHTS,
    CheckpointError,
    HubSource,
    Manifest,
    check_file,
    checkpoint_folder,
)
from rankcollapse.checkpoints.watch import run_watched
from rankcollapse.files import sha256

DEADLINE_S = 30.0
PARQUET_REF = "refs/convert/parquet"


@dataclass(frozen=True)
class HubFile:
    """A file as the hub lists it: `sha256` for large files, git's blob `sha1` for the others."""

    path: str
    size: int
    sha1: str
    sha256: str | None


@dataclass(frozen=True)
class Repository:
    """A repository of the hub at a revision, and how long it may stay silent (seconds)."""

    name: str
    kind: str
    revision: str
    deadline: float


def fetch_hub(
    repository: str,
    revision: str,
    output: Path,
    *,
    name: str,
    files: Mapping[str, str] | None = None,
    deadline: float = DEADLINE_S,
) -> Manifest:
    """Fetch a pretrained model: config.json, tokenizer, and model.safetensors.

    Where the repository only has pytorch_model.bin, its tensors are saved as safetensors.

    Args:
        repository: "owner/name".
        revision: a commit, 40 hex digits.
        output: the checkpoint's folder.
        name: the checkpoint's name in tables.
        files: SHA-256 that files of the repository must have, beside the hub's own word.
        deadline: seconds without a new byte after which the download fails.

    Raises:
        CheckpointError: the hub cannot be reached or has no such thing, bytes are wrong, the
            model cannot be loaded, or the disk is full.
    """
    check_revision(repository, revision)
    repo = Repository(repository, "model", revision, deadline)
    with checkpoint_folder(output) as folder:
        with _scratch(folder) as scratch:
            chosen = _model_files(repo, _list(repo, scratch)[1])
            _download(repo, chosen, scratch)
            _check_pinned(scratch, files or {})
            for file in chosen:
                (scratch / file.path).rename(folder / file.path)
        from rankcollapse.checkpoints.load import convert_pickle, seal

        if (folder / PICKLE).exists():
            convert_pickle(folder / PICKLE)
        source = HubSource(repository=repository, revision=revision)
        return seal(folder, name=name, weights="pretrained", source=source)


def fetch_hub_files(
    repository: str,
    revision: str,
    output: Path,
    *,
    pattern: str,
    deadline: float = DEADLINE_S,
) -> str:
    """Fetch the files of a data set that match a pattern.

    Args:
        repository: "owner/name" of the data set.
        revision: a commit, 40 hex digits, or `PARQUET_REF`, the hub's own conversion, which is
            resolved to the commit that it names now.
        output: a folder for the files, beside `source.json` with the commit and hashes.
        pattern: of their paths, as "*/test/*.parquet".
        deadline: seconds without a new byte after which the download fails.

    Returns:
        The commit.

    Raises:
        CheckpointError: as `fetch_hub`.
    """
    if revision != PARQUET_REF:
        check_revision(repository, revision)
    with checkpoint_folder(output) as folder:
        with _scratch(folder) as scratch:
            commit, listed = _list(Repository(repository, "dataset", revision, deadline), scratch)
            chosen = [file for file in listed if _matches(file.path, pattern)]
            if not chosen:
                raise CheckpointError(f"{repository}: has no files {pattern!r} at {revision}")
            _download(Repository(repository, "dataset", commit, deadline), chosen, scratch)
            for file in chosen:
                (scratch / file.path).rename(folder / file.path.replace("/", "--"))
        hashes = {path.name: sha256(path) for path in sorted(folder.iterdir())}
        record = {"repository": repository, "revision": commit, "files": hashes}
        (folder / "source.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        return commit


def check_revision(repository: str, revision: str) -> None:
    """Refuse a branch or tag, whose files may change.

    Raises:
        CheckpointError: `revision` is not 40 hex digits.
    """
    if not re.fullmatch("[0-9a-f]{40}", revision):
        endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        raise CheckpointError(
            f"{repository}: revision {revision!r} is not a commit of 40 hex digits; "
            f"`git ls-remote {endpoint}/{repository}` lists them"
        )


def _matches(path: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(path, pattern) and ".." not in PurePosixPath(path).parts


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download.") as scratch:
        yield Path(scratch)


def _model_files(repo: Repository, listed: Sequence[HubFile]) -> list[HubFile]:
    """Return the files to take; weights as safetensors where there are any."""
    by_path = {file.path: file for file in listed}
    weights = WEIGHTS if WEIGHTS in by_path else PICKLE
    for needed in (CONFIG, TOKENIZER, weights):
        if needed not in by_path:
            also = f" and no {WEIGHTS}" if needed == PICKLE else ""
            raise CheckpointError(
                f"{repo.name}: has no {needed}{also} at {repo.revision}; "
                "choose a repository or revision that has"
            )
    return [by_path[name] for name in (CONFIG, weights, *TOKENIZER_FILES) if name in by_path]


def _list(repo: Repository, scratch: Path) -> tuple[str, list[HubFile]]:
    answer = _ask(repo, scratch, {}, total=None)
    return answer["commit"], [HubFile(**file) for file in answer["files"]]


def _download(repo: Repository, files: Sequence[HubFile], scratch: Path) -> None:
    request = {"paths": [file.path for file in files], "folder": str(scratch)}
    _ask(repo, scratch, request, total=sum(file.size for file in files))
    for file in files:
        _check_listed(repo, scratch / file.path, file)


def _ask(
    repo: Repository, scratch: Path, request: dict[str, Any], *, total: int | None
) -> dict[str, Any]:
    """Let a child process ask the hub.

    Raises:
        CheckpointError: what the hub, or the network, said.
        OSError: the child could not write.
    """
    where = {"repository": repo.name, "repo_type": repo.kind, "revision": repo.revision}
    finished = run_watched(
        [sys.executable, "-m", "rankcollapse.checkpoints.hub_download"],
        folder=scratch,
        deadline=repo.deadline,
        label=f"{'asking the hub for' if total is None else 'fetching'} {repo.name}",
        environment=_environment(scratch),
        request=json.dumps({**where, **request}) + "\n",
        total=total,
    )
    try:
        answer: dict[str, Any] = json.loads(finished.output)
    except ValueError:
        last = (finished.errors.strip().splitlines() or [f"exit code {finished.code}"])[-1]
        raise CheckpointError(f"{repo.name}: the download died ({last}); try again") from None
    if "error" in answer:
        raise CheckpointError(answer["error"])
    if "errno" in answer:
        raise OSError(answer["errno"], os.strerror(answer["errno"]))
    return answer


def _environment(scratch: Path) -> dict[str, str]:
    """Return the child's environment: caches beside the output, and plain HTTP, which resumes."""
    settings = {
        "HF_HUB_CACHE": str(scratch / "cache"),
        "HF_ASSETS_CACHE": str(scratch / "cache"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    return {**os.environ, **settings}


def _check_listed(repo: Repository, path: Path, file: HubFile) -> None:
    expected = file.sha256 or file.sha1
    actual = sha256(path) if file.sha256 else _git_sha1(path)
    if actual != expected:
        raise CheckpointError(
            f"{repo.name}: {file.path} came with hash {actual}, the hub lists {expected}; "
            "try again, and check HF_ENDPOINT"
        )


def _git_sha1(path: Path) -> str:
    content = path.read_bytes()
    header = f"blob {len(content)}\0".encode()
    return hashlib.sha1(header + content, usedforsecurity=False).hexdigest()


def _check_pinned(scratch: Path, files: Mapping[str, str]) -> None:
    for name, expected in files.items():
        check_file(scratch / name, expected)
