"""Run a whole profile and record it: `make reproduce`, `full`, `paper`, `smoke`.

Only the standard library is used, because the virtual environment may not exist yet. Snakemake
makes everything, then DVC takes the result into its cache without running it again. A killed
call leaves nothing in the way of the next one.
"""

import argparse
import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / ".reproduce.lock"
BIN = ROOT / ".venv" / "bin"


def main() -> int:
    """Run the profile named on the command line, and say where the results are."""
    parser = argparse.ArgumentParser(description=__doc__)
    profiles = sorted(path.stem for path in Path(ROOT, "config").glob("*.yaml"))
    parser.add_argument("profile", choices=profiles)
    profile = parser.parse_args().profile
    os.chdir(ROOT)
    with LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(
                f"{LOCK.name}: another `make reproduce` is at work in this folder; wait for it, "
                "or stop it and call again",
                file=sys.stderr,
            )
            return 1
        # Children keep the lock open, so it lasts as long as any job does.
        os.set_inheritable(lock.fileno(), True)
        return _run(profile)


def _run(profile: str) -> int:
    os.environ["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    os.environ.update(DVC_NO_ANALYTICS="true", MLFLOW_DISABLE_TELEMETRY="true")
    config = Path("config") / f"{profile}.yaml"
    snakemake = ["snakemake", "--configfile", str(config)]
    if _call(["make", "--no-print-directory", "install"]):
        return 1
    if any(Path(".snakemake", "locks").glob("*")):
        # Nobody else holds our lock: these were left by a killed run.
        _call([*snakemake, "--unlock", "--quiet", "all"])
    if _call([*snakemake, "--cores", "all"]):
        print(f"{profile} is not complete: see above, mend it, and call again", file=sys.stderr)
        return 1
    if profile != "smoke" and _record(profile):
        return 1
    _say_where(profile, config)
    return 0


def _record(profile: str) -> int:
    """Let DVC take the outputs of this profile, which becomes the one of params.yaml."""
    params = Path("params.yaml")
    old = params.read_text(encoding="utf-8")
    new = re.sub(r"(?m)^profile:.*$", f"profile: {profile}", old)
    if new != old:
        print(f"params.yaml: the profile of `dvc repro` is now {profile}")
        params.write_text(new, encoding="utf-8")
    return _call(["dvc", "commit", "--force", "--quiet"])


def _say_where(profile: str, config: Path) -> None:
    report = re.search(r"(?m)^report: *(\S+)", config.read_text(encoding="utf-8"))
    print(
        f"\nfigures   figures/{profile}/\n"
        f"verdicts  data/{profile}/verdicts/\n"
        f"report    {report[1] if report else ''}\n"
        "MLflow    .venv/bin/mlflow ui --backend-store-uri sqlite:///mlflow.db"
    )


def _call(command: list[str]) -> int:
    # The lock's file descriptor goes to the children.
    return subprocess.run(command, close_fds=False, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
