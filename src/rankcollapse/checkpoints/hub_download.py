"""The child process that talks to the Hugging Face hub: one request in, one answer out, as JSON.

A process of its own, because the hub client can wait for minutes whatever its timeouts say, and
only a process can be ended from outside. It ends by itself when its parent does.
"""

import json
import os
import sys
import threading
from typing import Any

from huggingface_hub import HfApi, constants, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RevisionNotFoundError

# The client writes what it has got in chunks of 10 MB: on a slow line that would look like no
# progress, and a cut connection would lose up to as much.
constants.DOWNLOAD_CHUNK_SIZE = 1 << 16


def main() -> None:
    """Answer the request on standard input."""
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    json.dump(answer(request), sys.stdout)


def _end_with_parent() -> None:
    # The parent holds the other end of standard input open; it reads as closed when it is gone.
    while os.read(0, 1):
        pass
    os._exit(1)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return what was asked for, or `error` (one line) or `errno` (the disk's)."""
    action = _download if "paths" in request else _list
    try:
        return action(**request)
    except Exception as error:
        if isinstance(error, OSError) and error.errno and not isinstance(error, HfHubHTTPError):
            return {"errno": error.errno}
        where = f"{request['repository']} at {constants.ENDPOINT}"
        return {"error": f"{where}: {explain(error, request['revision'])}"}


def _list(repository: str, repo_type: str, revision: str) -> dict[str, Any]:
    info = HfApi().repo_info(
        repository, revision=revision, repo_type=repo_type, files_metadata=True
    )
    files = [
        {
            "path": entry.rfilename,
            "size": entry.size,
            "sha1": entry.blob_id,
            "sha256": entry.lfs.sha256 if entry.lfs else None,
        }
        for entry in info.siblings or []
    ]
    return {"commit": info.sha, "files": files}


def _download(
    repository: str, repo_type: str, revision: str, paths: list[str], folder: str
) -> dict[str, Any]:
    for path in paths:
        hf_hub_download(repository, path, repo_type=repo_type, revision=revision, local_dir=folder)
    return {}


def explain(error: Exception, revision: str) -> str:
    """Say in one line what the hub client's error means and what to do."""
    if isinstance(error, OfflineModeIsEnabled):
        return "not asked, because HF_HUB_OFFLINE is set; unset it, or run `dvc pull`"
    if isinstance(error, RevisionNotFoundError):
        return f"has no revision {revision}; take a commit from the page of its history"
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if status in (401, 403):
        return (
            f"{status}, no such repository or no access to it; "
            "check its name, or set HF_TOKEN to a token that may read it"
        )
    if status == 404:
        return "404, not found; check the name and the revision"
    if status is not None:
        return f"the hub answered {status}; try again later"
    lines = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
    return f"cannot be reached ({lines[0]}); check the network and HF_ENDPOINT, or run `dvc pull`"


if __name__ == "__main__":
    main()
