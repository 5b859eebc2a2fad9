"""A copy of the repository in which the smoke profile runs as a user would run it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONFIG = "config/smoke.yaml"
GIT = ("git", "-c", "user.name=test", "-c", "user.email=test@localhost")


def environment(tree, **changes):
    """Return variables with which commands use the package of `tree`, and no network."""
    kept = {
        name: value
        for name, value in os.environ.items()
        # Coverage is measured in this repository, not in its copy.
        if not name.startswith(("MLFLOW", "RANKCOLLAPSE", "MAKE", "COV"))
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    offline = {"HF_HUB_OFFLINE": "1", "DVC_NO_ANALYTICS": "true"}
    return {**kept, "PATH": path, "PYTHONPATH": str(tree / "src"), **offline, **changes}


def call(tree, *command, check=True, timeout=600, **changes):
    """Run a command in `tree`; return what it wrote, both streams together."""
    done = subprocess.run(
        command,
        cwd=tree,
        env=environment(tree, **changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert not check or done.returncode == 0, done.stdout
    return done.stdout if check else done


def snakemake(tree, *arguments, **options):
    return call(tree, "snakemake", "--configfile", CONFIG, *arguments, **options)


def wanted(tree, *arguments):
    """Return the rules that Snakemake would run now, without the target, as {rule: jobs}."""
    lines = snakemake(tree, "-n", *arguments).splitlines()
    if "Job stats:" not in lines:
        return {}
    table = lines[lines.index("Job stats:") + 3 :]
    counts = dict(line.split() for line in table[: table.index("")])
    return {rule: int(count) for rule, count in counts.items() if rule not in ("all", "total")}


def copy_repository(target):
    """Copy what git tracks or would track, with the smoke profile as DVC's."""
    listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(listed, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    (target / "dvc.lock").unlink(missing_ok=True)
    (target / "params.yaml").write_text("profile: smoke\n")
    # `make install` finds an environment that is newer than what it is made from.
    (target / ".venv").mkdir()
    (target / ".venv/bin").symlink_to(Path(sys.executable).parent)
    (target / ".venv/installed").touch()
    call(target, "git", "init", "-q")
    commit(target, "start")
    return target


def commit(tree, message):
    call(tree, "git", "add", "-A")
    call(tree, *GIT, "commit", "-q", "-m", message)


def edit(path, old, new):
    text = path.read_text()
    assert text.count(old) >= 1, f"{path} has no {old!r}"
    path.write_text(text.replace(old, new, 1))
