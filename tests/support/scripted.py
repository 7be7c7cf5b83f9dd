"""An S3 server in memory that misbehaves by plan: `plan(number, method, key)` names what becomes of a request.

"500 before"   nothing is done, and the answer is 500; likewise with 403, 409, 412, 429 and 503
"403 before SomeCode"   the same, with a code of S3 in the answer
"500 after"    it is done, and the answer is 500
"drop before", "drop after"   the connection is closed without an answer
"twice"        it is done twice, as by a proxy that sends it again; the second answer counts
"hang"         it is done, and no answer comes
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Plan = Callable[[int, str, str], str | None]
Answer = tuple[int, dict[str, str], bytes]  # status, headers, body
BUCKET = "test"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        key = url.path.removeprefix(f"/{BUCKET}").removeprefix("/")
        kind, when, code = [*(self.server.next(self.command, key) or "").split(), "", "", ""][:3]
        self.close_connection = True  # so that nothing is left open when the test ends
        status, headers, answer = self._nothing if when == "before" else self._do(key, body, parse_qs(url.query))
        if kind == "twice":
            status, headers, answer = self._do(key, body, parse_qs(url.query))
        if kind.isdigit():
            status, headers, answer = int(kind), {}, f"<Error><Code>{code}</Code></Error>".encode() if code else b""
        if kind == "hang":
            self.server.released.wait(60)
        if kind in ("drop", "hang"):
            return
        self.send_response(status)
        if self.server.keeps_versions:
            number = sum(name == key for name, _ in self.server.versions)
            headers = {"x-amz-version-id": f"v{number}", **headers}
        for name, value in {"Content-Length": str(len(answer)), "Connection": "close", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_PUT = do_DELETE = do_POST = _serve

    _nothing: Answer = (500, {}, b"")

    def _do(self, key: str, body: bytes, query: dict[str, list[str]]) -> Answer:
        objects = self.server.objects
        with self.server.mutex:
            if "list-type" in query:
                prefix = query.get("prefix", [""])[0]
                return (
                    200,
                    {"Content-Type": "application/xml"},
                    _listing([k for k in sorted(objects) if k.startswith(prefix)]),
                )
            if self.command == "POST":  # delete several
                names = re.findall(rb"<Key>(.*?)</Key>", body)
                for name in names:
                    self.server.forget(name.decode())
                told = b"".join(b"<Deleted><Key>%s</Key></Deleted>" % name for name in names)
                return 200, {"Content-Type": "application/xml"}, b"<DeleteResult>%s</DeleteResult>" % told
            found = objects.get(key)
            if self.command == "PUT":
                wanted = self.headers.get("If-Match")
                if (self.headers.get("If-None-Match") and found is not None) or (
                    wanted is not None and (found is None or _tag(found) != wanted)
                ):
                    return 412, {}, b""
                self.server.forget(key)
                objects[key] = body
                return 200, {"ETag": _tag(body)}, b""
            if found is None:
                return 404, {}, b""
            headers = {"ETag": _tag(found), "Last-Modified": formatdate(usegmt=True)}
            if self.headers.get("If-None-Match") == headers["ETag"]:
                return 304, headers, b""
            if span := self.headers.get("Range"):
                first, last = (int(number) for number in span.removeprefix("bytes=").split("-"))
                part = found[first : last + 1]
                headers["Content-Range"] = f"bytes {first}-{first + len(part) - 1}/{len(found)}"
                return 206, headers, part
            return 200, headers, found


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, plan: Plan) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.plan = plan
        self.objects: dict[str, bytes] = {}
        self.mutex = threading.Lock()
        self.released = threading.Event()
        self.keeps_versions = False
        self.versions: list[tuple[str, bytes]] = []  # what was replaced or deleted
        self.number = 0

    def forget(self, key: str) -> None:
        """Delete an object, or make room for another version of it."""
        found = self.objects.pop(key, None)
        if self.keeps_versions and found is not None:
            self.versions.append((key, found))

    def next(self, method: str, key: str) -> str | None:
        with self.mutex:
            self.number += 1
            return self.plan(self.number - 1, method, key)


@contextmanager
def scripted(plan: Plan = lambda *_: None) -> Iterator[Server]:
    with Server(plan) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            server.shutdown()
            thread.join()


def store_on(server: Server, *, retries: int | None, timeout: str = "5s") -> Any:
    """An obstore store on it; `retries` of its own, or its default."""
    from obstore.store import S3Store

    more: dict[str, Any] = {} if retries is None else {"retry_config": {"max_retries": retries}}
    return S3Store(
        BUCKET,
        endpoint=f"http://127.0.0.1:{server.server_port}",
        region="us-east-1",
        access_key_id="test",
        secret_access_key="testtest",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True, "timeout": timeout},
        **more,
    )


def _tag(data: bytes) -> str:
    """As S3 makes them: equal for equal bytes."""
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def _listing(keys: list[str]) -> bytes:
    rows = "".join(
        f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><Size>0</Size></Contents>"
        for key in keys
    )
    head = "<Name>test</Name><IsTruncated>false</IsTruncated>"
    return f'<?xml version="1.0"?><ListBucketResult>{head}{rows}</ListBucketResult>'.encode()
