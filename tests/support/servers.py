"""Object stores on loopback for tests: Ceph's gateway (S3), Azurite (Azure Blob Storage), and npm's stand-ins for S3.

    with ceph(folder) as store: ...        # an obstore store on a new bucket

    python -m tests.support.servers ceph   # starts one and prints how to reach it, until Enter

A server listens on a free port, keeps its data in memory or below `folder`, and ends with the block; its processes end
with this one, whatever happens.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import itertools
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

from tests.support import scratch

HOST = "127.0.0.1"
KEY, SECRET = "test", "testtest"
READY_IN = 130.0  # seconds, on a loaded machine; twice that is less than a test may take
_buckets = itertools.count()

CEPH = """
[global]
fsid = {fsid}
mon host = [v1:{host}:{mon}/0]
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd crush chooseleaf type = 0
mon allow pool size one = true
mon data avail crit = 1
mon data avail warn = 2
mon max pg per osd = 1000
run dir = {folder}/run
admin socket = {folder}/run/$name.$pid.asok
log file = {folder}/$name.log
public network = 127.0.0.0/8
ms bind ipv6 = false
ms bind msgr2 = false
[mon.a]
mon data = {folder}/mon
[osd.0]
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = 1073741824
[client.rgw]
rgw frontends = beast endpoint={host}:{gateway}
rgw enable usage log = false
"""


class NotReady(Exception):
    """A server did not answer in time, or ended; with what it printed."""


@contextmanager
def ceph(_: Path) -> Iterator[Any]:
    """A monitor, an OSD in memory and the gateway of Ceph, in a folder of their own: the path of a socket is short."""
    with ExitStack() as stack:
        for last in (False, True):
            short = stack.enter_context(scratch.held())
            try:
                store = stack.enter_context(_ceph(short))
                break
            except (NotReady, subprocess.SubprocessError):  # a port that was free went to somebody else
                if last:
                    raise
        yield store


@contextmanager
def _ceph(folder: Path) -> Iterator[Any]:
    for name in ("mon", "osd", "run"):
        (folder / name).mkdir(parents=True)
    mon, gateway = free_port(), free_port()
    conf, fsid = folder / "ceph.conf", str(uuid.uuid4())
    conf.write_text(CEPH.format(fsid=fsid, host=HOST, mon=mon, gateway=gateway, folder=folder), encoding="utf-8")

    def run(program: str, *args: str) -> str:
        argv = [program, "-c", str(conf), *args]
        done = subprocess.run(
            argv, check=True, timeout=READY_IN, cwd=folder, capture_output=True, text=True, encoding="utf-8"
        )
        return done.stdout

    with ExitStack() as stack:

        def serve(program: str, *args: str) -> subprocess.Popen[bytes]:
            return stack.enter_context(started([program, "-f", "-c", str(conf), *args], folder / f"{program}.out"))

        subprocess.run(
            ["monmaptool", "--create", "--addv", "a", f"[v1:{HOST}:{mon}/0]", "--fsid", fsid, str(folder / "monmap")],
            check=True,
            capture_output=True,
        )
        run("ceph-mon", "--mkfs", "-i", "a", "--monmap", str(folder / "monmap"))
        serve("ceph-mon", "-i", "a")
        osd = str(uuid.uuid4())
        patiently(lambda: run("ceph", "osd", "new", osd))  # the monitor may not answer yet
        run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd)
        serving = [serve("ceph-osd", "-i", "0")]

        def require_up() -> None:
            if serving[-1].poll() is not None:  # it asked the monitor before it knew the cluster: "wrong fsid"
                serving.append(serve("ceph-osd", "-i", "0"))
            if " 1 up" not in run("ceph", "osd", "stat"):
                raise NotReady("the OSD is not up")

        patiently(require_up)
        server = serve("radosgw", "-n", "client.rgw")
        wait_for_port(gateway, server, folder / "radosgw.out")
        user = ["user", "create", "--uid=test", "--display-name=test", f"--access-key={KEY}", f"--secret-key={SECRET}"]
        run("radosgw-admin", "-n", "client.rgw", *user)
        yield s3_store(gateway)


@contextmanager
def azurite(folder: Path) -> Iterator[Any]:
    """Azurite, in memory."""
    from obstore.store import AzureStore

    port, account = free_port(), "test"
    key = base64.b64encode(SECRET.encode()).decode()
    argv = ["azurite-blob", "--inMemoryPersistence", "--skipApiVersionCheck", "--silent", "--disableTelemetry"]
    argv += ["--blobHost", HOST, "--blobPort", str(port)]
    with started(argv, folder / "azurite.out", {"AZURITE_ACCOUNTS": f"{account}:{key}"}, cwd=folder) as server:
        wait_for_port(port, server, folder / "azurite.out")
        container = f"test{next(_buckets)}"
        date, version = formatdate(usegmt=True), "2021-08-06"
        headers = {"x-ms-date": date, "x-ms-version": version, "Content-Length": "0"}
        text = "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{version}\n"
        text += f"/{account}/{account}/{container}\nrestype:container"
        signed = base64.b64encode(hmac.digest(SECRET.encode(), text.encode(), hashlib.sha256)).decode()
        headers["Authorization"] = f"SharedKey {account}:{signed}"
        request(port, f"/{account}/{container}?restype=container", headers)
        yield AzureStore(
            container,
            account_name=account,
            account_key=key,
            endpoint=f"http://{HOST}:{port}/{account}",
            client_options={"allow_http": True, "timeout": "30s"},
            retry_config={"max_retries": 0},
        )


@contextmanager
def fauxqs(folder: Path) -> Iterator[Any]:
    """A stand-in for S3 that takes no notice of conditions."""
    port = free_port()
    with started(["fauxqs"], folder / "fauxqs.out", {"FAUXQS_PORT": str(port), "FAUXQS_LOGGER": "false"}) as server:
        wait_for_port(port, server, folder / "fauxqs.out")
        yield s3_store(port)


@contextmanager
def s3rver(folder: Path) -> Iterator[Any]:
    """Another one."""
    port = free_port()
    argv = ["s3rver", "--directory", str(folder / "s3rver"), "--address", HOST, "--port", str(port), "--silent"]
    argv += ["--configure-bucket", "test"]
    with started(argv, folder / "s3rver.out") as server:
        wait_for_port(port, server, folder / "s3rver.out")
        yield s3_store(port, "test", key="S3RVER", secret="S3RVER")


SERVERS: Mapping[str, Callable[[Path], Any]] = {"ceph": ceph, "azurite": azurite, "fauxqs": fauxqs, "s3rver": s3rver}


def s3_store(port: int, bucket: str | None = None, *, key: str = KEY, secret: str = SECRET) -> Any:
    """An obstore store on a bucket, a new one if none is named."""
    from obstore.store import S3Store

    if bucket is None:
        bucket = f"test{next(_buckets)}"
        signed_put(port, f"/{bucket}", key=key, secret=secret)
    return S3Store(
        bucket,
        endpoint=f"http://{HOST}:{port}",
        region="us-east-1",
        access_key_id=key,
        secret_access_key=secret,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True, "timeout": "30s"},
        retry_config={"max_retries": 0},
    )


def signed_put(port: int, path: str, body: bytes = b"", *, key: str = KEY, secret: str = SECRET) -> None:
    """A request that obstore does not make, signed as AWS did before 2014, which takes one line."""
    date = formatdate(usegmt=True)
    signed = base64.b64encode(hmac.digest(secret.encode(), f"PUT\n\n\n{date}\n{path}".encode(), hashlib.sha1))
    headers = {"Date": date, "Authorization": f"AWS {key}:{signed.decode()}", "Content-Length": str(len(body))}
    request(port, path, headers, body=body)


def keep_versions(store: Any) -> None:
    """Turn versioning on for the bucket of a store."""
    port = int(store.config["endpoint"].rpartition(":")[2])
    body = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    signed_put(port, f"/{store.config['bucket']}?versioning", body)


# -- processes ------------------------------------------------------------------------------------------------------


@contextmanager
def started(
    argv: list[str], output: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs in the block, and never longer than this process."""
    argv = ["setpriv", "--pdeathsig", "KILL", *argv]
    with output.open("wb") as out:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def patiently(act: Callable[[], object]) -> None:
    """Again until it succeeds, or for too long."""
    until = time.monotonic() + READY_IN
    while True:
        try:
            act()
            return
        except (NotReady, subprocess.SubprocessError):
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def free_port() -> int:
    with socket.socket() as one:
        one.bind((HOST, 0))
        port: int = one.getsockname()[1]
        return port


def wait_for_port(port: int, process: subprocess.Popen[bytes], output: Path) -> None:
    until = time.monotonic() + READY_IN
    while time.monotonic() < until and process.poll() is None:
        try:
            request(port, "/", method="GET")
            return
        except (OSError, http.client.HTTPException):
            time.sleep(0.1)
    raise NotReady(f"{process.args!r}: {output.read_text(encoding='utf-8', errors='replace')[-2000:]}")


def request(
    port: int, path: str, headers: Mapping[str, str] | None = None, *, method: str = "PUT", body: bytes = b""
) -> None:
    """One request. A PUT has to succeed; for anything else an answer is enough."""
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    try:
        connection.request(method, path, body or None, dict(headers or {}))
        answer = connection.getresponse()
        told = answer.read()
        if method == "PUT" and answer.status >= 300:
            raise NotReady(f"PUT {path}: {answer.status} {told[:500]!r}")
    finally:
        connection.close()


if __name__ == "__main__":
    with scratch.held() as place, SERVERS[sys.argv[1]](place) as made:
        print(made.__class__.__name__, made.config, made.prefix or "", sep="\n", flush=True)
        sys.stdin.readline()
