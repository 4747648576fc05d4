"""A small part of the Hugging Face Hub on the loopback device: what fetching one file asks of it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class HubServer:
    """What it has, how it fails, and what it was asked."""

    files: dict[str, bytes] = field(default_factory=dict)
    """By `owner/name/path`."""
    error: tuple[int, str] | None = None
    """Status and X-Error-Code of every answer."""
    break_after: list[int] = field(default_factory=list)
    """Bytes after which each of the next downloads breaks off."""
    ignore_ranges: bool = False
    bare: bool = False
    """Answer as no hub does: without its headers."""
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    """Method, path and headers."""
    url: str = ""

    def asked(self, method: str) -> list[dict[str, str]]:
        return [headers for name, _, headers in self.requests if name == method]


@contextmanager
def hub_server() -> Iterator[HubServer]:
    """Serve until the block is left."""
    hub = HubServer()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(hub))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def _handler_of(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            hub.requests.append((self.command, self.path, headers))
            repository, _, rest = unquote(self.path.lstrip("/")).partition("/resolve/")
            revision, _, file = rest.partition("/")
            content = hub.files.get(f"{repository}/{file}")
            if hub.error is not None:
                return self._refuse(*hub.error)
            if content is None or revision not in ("main", COMMIT, "v1"):
                known = any(name.startswith(f"{repository}/") for name in hub.files)
                missing = "EntryNotFound" if revision in ("main", COMMIT, "v1") else "RevisionNotFound"
                return self._refuse(404, missing) if known else self._refuse(401, "")
            self._send(content, headers.get("range", ""), body=body)
            return None

        def _send(self, content: bytes, range_: str, *, body: bool) -> None:
            start = int(range_.removeprefix("bytes=").rstrip("-")) if range_ and not hub.ignore_ranges else 0
            self.send_response(206 if range_ and not hub.ignore_ranges else 200)
            self.send_header("Content-Length", str(len(content) - start))
            if range_ and not hub.ignore_ranges:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            if not hub.bare:
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.end_headers()
            if body:
                content = content[start:]
                if hub.break_after:
                    content = content[: hub.break_after.pop(0)]
                    self.close_connection = True
                self.wfile.write(content)

        def _refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            if code:
                self.send_header("X-Error-Code", code)
            self.end_headers()

    return Handler
