"""A small Hugging Face hub on 127.0.0.1, which can be made to fail in the ways that hubs do."""

import hashlib
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 1000


@dataclass
class Hub:
    """What the server has, and how it misbehaves.

    repositories: {"models/owner/name": {path: bytes}}, all at COMMIT; refs name COMMIT too.
    status: answered to everything.   token: needed in every request.
    silent: accept and never answer.   stall_after: bytes of a file, then silence.
    cut_after: bytes of the first answer for each file, then the connection is closed.
    tampered: {path: other bytes} sent in the place of the listed ones.
    """

    repositories: dict
    refs: tuple = ("main", "refs/convert/parquet")
    status: int | None = None
    token: str | None = None
    silent: bool = False
    stall_after: int | None = None
    cut_after: int | None = None
    tampered: dict = field(default_factory=dict)
    requests: list = field(default_factory=list)
    ranges: list = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)
    endpoint: str = ""


def blob_sha1(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def listing(files):
    """Return what the hub says of each file: large ones have a SHA-256 too."""
    entries = []
    for path, content in files.items():
        entry = {"rfilename": path, "size": len(content), "blobId": blob_sha1(content)}
        if len(content) > LARGE:
            large = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
            entry["lfs"] = {**large, "pointerSize": 134}
        entries.append(entry)
    return entries


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self):
        return self.server.hub

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.hub.requests.append((self.command, self.path))
        if self.hub.silent:
            self.hub.closing.wait()
            self.close_connection = True
        elif self.hub.status:
            self.refuse(self.hub.status)
        elif self.hub.token and self.headers["Authorization"] != f"Bearer {self.hub.token}":
            self.refuse(401)
        else:
            self.route([unquote(part) for part in urlsplit(self.path).path.split("/")[1:]])

    def route(self, parts):
        if parts[0] == "api":
            kind, owner, name, action, revision = parts[1:6]
        else:
            kind = parts.pop(0) if parts[0] == "datasets" else "models"
            owner, name, action, revision = parts[:4]
        files = self.hub.repositories.get(f"{kind}/{owner}/{name}")
        if files is None:
            self.refuse(404, "RepoNotFound")
        elif revision not in (COMMIT, *self.hub.refs):
            self.refuse(404, "RevisionNotFound")
        elif action == "revision":
            info = {"id": f"{owner}/{name}", "sha": COMMIT, "siblings": listing(files)}
            self.answer(json.dumps(info).encode())
        else:
            self.send_file(files, "/".join(parts[4:]))

    def refuse(self, status, code=None):
        self.answer(b"{}", status, {"X-Error-Code": code} if code else {})

    def answer(self, body, status=200, headers=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def send_file(self, files, path):
        content = self.hub.tampered.get(path, files[path])
        start = self.start(path)
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{blob_sha1(files[path])}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if self.command == "GET":
            self.send_body(content, start)

    def start(self, path):
        value = self.headers["Range"]
        if not value:
            return 0
        start = int(value.removeprefix("bytes=").split("-")[0])
        self.hub.ranges.append((path, start))
        return start

    def send_body(self, content, start):
        stall, cut = self.hub.stall_after, self.hub.cut_after
        if stall is not None and len(content) > stall:
            self.wfile.write(content[:stall])
            self.wfile.flush()
            self.hub.closing.wait()
            self.close_connection = True
        elif cut is not None and start == 0 and len(content) > cut:
            self.wfile.write(content[:cut])
            self.wfile.flush()
            self.close_connection = True
        else:
            self.wfile.write(content[start:])


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A client that was killed is what some tests want."""


@contextmanager
def serve(hub):
    """Serve a Hub on a free port; its `endpoint` is the address."""
    server = Server(("127.0.0.1", 0), Handler)
    server.hub = hub
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        hub.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()
