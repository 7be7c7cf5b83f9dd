"""The recipes of docs/startup.md, as they stand there, on a directory in which a commit has died half done."""

from __future__ import annotations

import asyncio
import configparser
import io
import json
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.boundary import killed
from tests.support.documents import blocks
from tests.support.needs import program
from tests.support.procs import CHECKOUT, child, run_python
from txfiles import FileTransaction, recover, status
from txfiles.errors import RecoveryConflictError

PAGE = blocks((CHECKOUT / "docs" / "startup.md").read_text(encoding="utf-8"))
STATES = {"old": {"orders.json": "old", "stock.json": "old"}, "new": {"orders.json": "new", "stock.json": "new"}}


def block(language: str, having: str = "") -> str:
    """The one block of the page in this language that contains a text."""
    [found] = [one.code for one in PAGE if one.language == language and having in one.code]
    return found


@pytest.fixture
def state(root: Path) -> Path:
    """A commit has died after one of its two files."""
    _save(root, "old")
    killed(lambda: _save(root, "new"), "rename", 3)
    assert _content(root) not in STATES.values()
    return root


@pytest.fixture
def conflict(state: Path) -> Iterator[Path]:
    """Somebody has changed the other file since: only a person can decide."""
    (state / "stock.json").write_text("theirs", encoding="utf-8")
    yield state
    recover(state, on_conflict="keep-theirs")


def _save(root: Path, text: str) -> None:
    with FileTransaction(root) as tx:
        for path in STATES[text]:
            tx.write(path, text)


def _content(root: Path) -> dict[str, str]:
    return {path: (root / path).read_text(encoding="utf-8") for path in STATES["old"]}


def recovered(root: Path) -> bool:
    return _content(root) == STATES["new"] and status(root).clean


def namespace(having: str, state: Path) -> dict[str, Any]:
    """What the Python block with this text defines, for this directory."""
    names: dict[str, Any] = {"STATE": str(state)}
    for code in ("import asyncio, txfiles\nfrom contextlib import asynccontextmanager", block("python", having)):
        exec(code, names)
    return names


# -- ASGI -----------------------------------------------------------------------------------------------------------


class Server:
    """As much of an ASGI server as a lifespan sees (ASGI 3, lifespan 2.0)."""

    def __init__(self, application: Any) -> None:
        self.application = application
        self.sent: list[dict[str, Any]] = []

    async def run(self, between: Any = lambda: None) -> None:
        inbox = asyncio.Queue[dict[str, Any]]()
        answered = asyncio.Event()

        async def send(message: dict[str, Any]) -> None:
            self.sent.append(message)
            answered.set()

        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
        task = asyncio.create_task(self.application(scope, inbox.get, send))
        await inbox.put({"type": "lifespan.startup"})
        await answered.wait()
        between()
        await inbox.put({"type": "lifespan.shutdown"})
        await task


def started(application: Any, state: Path) -> list[str]:
    """The types of what an application sends; when it has started, the state must be recovered."""
    server = Server(application)

    def look() -> None:
        assert recovered(state) or server.sent[0]["type"] == "lifespan.startup.failed"

    asyncio.run(server.run(look))
    return [message["type"] for message in server.sent]


def test_an_asgi_application_recovers_before_it_has_started(state: Path) -> None:
    application = namespace("async def application", state)["application"]
    assert started(application, state) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_an_asgi_application_does_not_start_on_a_conflict(conflict: Path) -> None:
    application = namespace("async def application", conflict)["application"]
    assert started(application, conflict) == ["lifespan.startup.failed"]


@pytest.mark.needs("module:starlette")
def test_a_lifespan_of_starlette(state: Path) -> None:
    from starlette.applications import Starlette

    application = Starlette(lifespan=namespace("def lifespan", state)["lifespan"])
    assert started(application, state) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


@pytest.mark.needs("module:starlette")
def test_a_lifespan_that_fails_keeps_starlette_from_starting(conflict: Path) -> None:
    from starlette.applications import Starlette

    server = Server(Starlette(lifespan=namespace("def lifespan", conflict)["lifespan"]))
    with pytest.raises(Exception, match="changed by somebody else"):
        asyncio.run(server.run())
    assert [message["type"] for message in server.sent] == ["lifespan.startup.failed"]


# -- busy: 503 ------------------------------------------------------------------------------------------------------


def _shop(having: str, state: Path) -> dict[str, Any]:
    """What a block defines that goes on from the one with the lifespan and from that of FastAPI."""
    names = namespace("def lifespan", state) | {"__name__": __name__}
    for text in ("FastAPI(lifespan=lifespan)", having):
        exec(block("python", text).replace("timeout=1)", "timeout=0.1)"), names)
    return names


@pytest.mark.needs("module:fastapi", "module:httpx")
@pytest.mark.parametrize("framework", ["fastapi", "starlette"])
def test_a_busy_root_is_503_in_fastapi_and_starlette(root: Path, framework: str) -> None:
    import httpx
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    names = _shop("FastAPI(lifespan=lifespan)", root)
    app = names["app"]
    if framework == "starlette":

        async def order(request: Any) -> JSONResponse:
            return JSONResponse(await names["order"](await request.json()))

        handlers = {names["LockTimeoutError"]: names["busy"]}
        routes = [Route("/orders", order, methods=["POST"])]
        app = Starlette(lifespan=names["lifespan"], exception_handlers=handlers, routes=routes)

    def post(item: int) -> httpx.Response:
        async def main() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
                return await client.post("/orders", json={"item": item})

        return asyncio.run(main())

    assert post(1).json() == {"orders": 1}
    with FileTransaction(root):
        refused = post(2)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    assert post(3).json() == {"orders": 2}
    assert json.loads((root / "orders.json").read_text(encoding="utf-8")) == [{"item": 1}, {"item": 3}]


@pytest.mark.needs("module:flask")
def test_a_busy_root_is_503_in_flask(root: Path) -> None:
    client = _shop("from flask import", root)["create_app"]().test_client()
    assert client.post("/orders/tea").get_json() == {"orders": 1}
    with ThreadPoolExecutor(1) as other, FileTransaction(root):
        refused = other.submit(client.post, "/orders/milk").result()
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    assert client.post("/orders/bread").get_json() == {"orders": 2}


@pytest.mark.needs("module:flask")
def test_a_flask_app_is_not_made_on_a_conflict(conflict: Path) -> None:
    with pytest.raises(RecoveryConflictError):
        _shop("from flask import", conflict)["create_app"]()


@pytest.mark.needs("module:flask")
def test_a_flask_app_recovers_when_it_is_made(state: Path) -> None:
    _shop("from flask import", state)["create_app"]()
    assert recovered(state)


# -- Django ---------------------------------------------------------------------------------------------------------

SETUP = """
    sys.path.insert(0, sys.argv[1])
    import django
    from django.conf import settings
    settings.configure(INSTALLED_APPS=["shop"], STATE_DIR=sys.argv[2])
    django.setup()
"""


def _set_up(tmp_path: Path, state: Path) -> Any:
    app = tmp_path / "project" / "shop"
    app.mkdir(parents=True)
    (app / "__init__.py").touch()
    (app / "apps.py").write_text(block("python", "AppConfig"), encoding="utf-8")
    return run_python(SETUP, app.parent, state)


@pytest.mark.needs("module:django")
def test_a_django_app_recovers_when_it_is_ready(tmp_path: Path, state: Path) -> None:
    _set_up(tmp_path, state).check()
    assert recovered(state)


@pytest.mark.needs("module:django")
def test_a_django_app_is_not_ready_on_a_conflict(tmp_path: Path, conflict: Path) -> None:
    done = _set_up(tmp_path, conflict)
    assert done.returncode == 1
    assert "RecoveryConflictError" in done.stderr


@pytest.mark.needs("module:django")
def test_a_busy_root_is_503_in_django(tmp_path: Path) -> None:
    (tmp_path / "middleware.py").write_text(block("python", "BusyMiddleware"), encoding="utf-8")
    code = """
        sys.path.insert(0, sys.argv[1])
        import django
        from django.conf import settings
        from django.http import HttpResponse
        from django.test import Client
        from django.urls import path
        from txfiles import FileTransaction

        def view(request):
            with FileTransaction(sys.argv[2], timeout=0, create=True) as tx:
                tx.write("a", "x")
            return HttpResponse("done")

        urlpatterns = [path("", view)]
        settings.configure(ROOT_URLCONF=sys.modules["__main__"], MIDDLEWARE=["middleware.BusyMiddleware"],
                           ALLOWED_HOSTS=["testserver"])
        sys.modules["__main__"].urlpatterns = urlpatterns
        django.setup()
        assert Client().get("/").content == b"done"
        import threading
        with FileTransaction(sys.argv[2]):
            answers = []
            other = threading.Thread(target=lambda: answers.append(Client().get("/")))
            other.start()
            other.join()
        assert (answers[0].status_code, answers[0]["Retry-After"]) == (503, "1")
    """
    run_python(code, tmp_path, tmp_path / "root").check()


# -- Celery ---------------------------------------------------------------------------------------------------------


@pytest.mark.needs("module:celery")
def test_a_celery_worker_recovers_and_a_task_that_found_it_busy_comes_again(tmp_path: Path, state: Path) -> None:
    (tmp_path / "shop.py").write_text(f"STATE = {str(state)!r}\n" + block("python", "worker_init"), encoding="utf-8")
    code = """
        sys.path.insert(0, sys.argv[1])
        import json, threading
        import shop
        from celery.signals import worker_init
        from txfiles import FileTransaction, JsonDocuments, status
        worker_init.send(sender=None)
        assert status(shop.STATE).clean
        assert open(shop.STATE + "/orders.json").read() == open(shop.STATE + "/stock.json").read() == "new"
        open(shop.STATE + "/orders.json", "w").write("{}")
        shop.shop = JsonDocuments(shop.STATE, {"orders": {}}, timeout=0.01)
        free, tried = threading.Event(), threading.Event()

        def hold():
            with FileTransaction(shop.STATE):
                free.set()
                tried.wait()

        shop.order.retry_backoff = False
        shop.order.default_retry_delay = 0
        from celery.signals import task_retry
        told = []
        task_retry.connect(lambda **more: (told.append(more["reason"]), tried.set(), holder.join()), weak=False)
        holder = threading.Thread(target=hold)
        holder.start()
        free.wait()
        assert shop.order.apply(args=["tea"], task_id="one").state == "SUCCESS"
        assert [type(reason.exc).__name__ for reason in told] == ["LockTimeoutError"], told
        assert shop.order.apply(args=["tea"], task_id="one").state == "SUCCESS"  # after a kill it comes again
        assert shop.shop.load() == {"orders": {"one": "tea"}}
    """
    run_python(code, tmp_path, state).check()


# -- gunicorn -------------------------------------------------------------------------------------------------------


@pytest.mark.needs("module:gunicorn")
def test_gunicorn_recovers_before_it_forks_its_workers(tmp_path: Path, state: Path) -> None:
    names = f"STATE = {str(state)!r}\n"
    (tmp_path / "gunicorn.conf.py").write_text(names + block("python", "preload_app"), encoding="utf-8")
    application = (
        "def app(environ, start_response):\n"
        "    start_response('200 OK', [('Content-Type', 'text/plain')])\n"
        "    return [open(STATE + '/stock.json', 'rb').read()]\n"
        "assert open(STATE + '/stock.json').read() == 'new'\n"  # also when it is loaded, before the fork
    )
    (tmp_path / "shop.py").write_text(names + application, encoding="utf-8")
    argv = [sys.executable, "-m", "gunicorn", "--bind", "127.0.0.1:0", "--no-control-socket"]
    argv += ["--graceful-timeout", "1", "shop:app"]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    with subprocess.Popen(argv, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True, encoding="utf-8") as server:
        assert server.stderr is not None
        told = ""
        while not (found := re.search(r"Listening at: (\S+)", told)):
            line = server.stderr.readline()
            assert line, told
            told += line
        with urllib.request.urlopen(found[1], timeout=60) as answer:
            assert answer.read() == b"new"
        server.send_signal(signal.SIGTERM)
        server.stderr.read()
    assert server.returncode == 0
    assert recovered(state)


# -- systemd --------------------------------------------------------------------------------------------------------


def _unit(state: Path, serve: str = "/bin/true") -> str:
    """The unit of the page, with the paths of this machine."""
    text = block("ini").replace("/opt/shop/bin/txfiles", _command()).replace("/opt/shop/bin/serve", serve)
    return text.replace("/var/lib/shop", str(state)).replace("User=shop", f"User={os.getuid()}")


def _command() -> str:
    command = shutil.which("txfiles", path=os.path.dirname(sys.executable))
    assert command is not None
    return command


@pytest.mark.needs("systemd-analyze")
def test_the_unit_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "shop.service"
    path.write_text(_unit(tmp_path / "state"), encoding="utf-8")
    analyze = program("systemd-analyze")
    assert analyze is not None
    done = subprocess.run([analyze, "verify", path], capture_output=True, text=True, check=False, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert "shop.service" not in done.stderr  # a warning


def _run_unit(state: Path) -> int:
    """What systemd runs: each command in turn, as long as they end with 0 (systemd.service(5))."""
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(_unit(state))
    for command in (unit["Service"]["ExecStartPre"], unit["Service"]["ExecStart"]):
        code = subprocess.run(shlex.split(command), check=False, capture_output=True).returncode
        if code:
            return code
    return 0


def test_the_commands_of_the_unit_recover(state: Path) -> None:
    assert _run_unit(state) == 0
    assert recovered(state)


def test_the_unit_does_not_start_on_a_conflict(conflict: Path) -> None:
    assert _run_unit(conflict) == 3


# -- a container ----------------------------------------------------------------------------------------------------


def _entrypoint(tmp_path: Path, state: Path, *command: str) -> subprocess.Popen[str]:
    script = tmp_path / "entrypoint.sh"
    script.write_text(block("sh"), encoding="utf-8")
    script.chmod(0o755)
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    env = {**os.environ, "PATH": path, "STATE": str(state)}
    return subprocess.Popen(
        [script, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, encoding="utf-8"
    )


def test_the_entrypoint_recovers_and_becomes_the_service(tmp_path: Path, state: Path) -> None:
    service = _entrypoint(tmp_path, state, "sh", "-c", f'cat "{state}/stock.json"; echo; echo $$; exec sleep 60')
    with service:
        assert service.stdout is not None
        lines = [service.stdout.readline().strip() for _ in range(3)]
        service.send_signal(signal.SIGTERM)
    assert "finished" in lines[0]
    assert lines[1:] == ["new", str(service.pid)]
    assert service.returncode == -signal.SIGTERM


def test_the_entrypoint_does_not_start_on_a_conflict(tmp_path: Path, conflict: Path) -> None:
    out, errors = _entrypoint(tmp_path, conflict, "echo", "started").communicate()
    assert "started" not in out
    assert "changed by somebody else" in errors


# -- several workers ------------------------------------------------------------------------------------------------


def test_of_workers_that_start_at_once_one_recovers(state: Path) -> None:
    worker = """
        import txfiles
        print("ready"); input()
        report = txfiles.recover(sys.argv[1], timeout=60)
        print(len(report.rolled_forward), len(report.rolled_back), report.clean)
        print(json.dumps({p: open(f"{sys.argv[1]}/{p}").read() for p in ("orders.json", "stock.json")}))
    """
    with ExitStack() as stack:
        workers = [stack.enter_context(child(worker, state)) for _ in range(10)]
        for one in workers:
            one.expect("ready")
        for one in workers:
            one.send()
        told = [one.finish().check().stdout.splitlines()[1:] for one in workers]
    assert sorted(first for first, _ in told) == ["0 0 True"] * 9 + ["1 0 False"]
    assert [json.loads(second) for _, second in told] == [STATES["new"]] * 10


def test_a_worker_that_starts_beside_a_writer_waits_for_its_end(root: Path) -> None:
    _save(root, "old")
    worker = 'import txfiles; print("begins"); print(txfiles.recover(sys.argv[1], timeout=60).clean)'
    tx = FileTransaction(root).begin()
    tx.write("orders.json", "new")
    with child(worker, root) as running:
        running.expect("begins")
        tx.commit()
        running.expect("True")
        running.finish().check()


# -- what is logged -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decision", ["roll-forward", "roll-back"])
def test_each_decision_is_a_record_with_fields(root: Path, caplog: pytest.LogCaptureFixture, decision: str) -> None:
    _save(root, "old")
    killed(lambda: _save(root, "new"), "rename", 1 if decision == "roll-back" else 2)
    [pending] = status(root).pending
    with caplog.at_level(logging.DEBUG, "txfiles"):
        recover(root)
        recover(root)
    [record] = caplog.records
    assert (record.name, record.levelname) == ("txfiles", "WARNING")
    told = {name: vars(record)[name] for name in ("root", "transaction_id", "decision", "paths", "count")}
    assert told == {
        "root": str(root),
        "transaction_id": pending.transaction_id,
        "decision": decision,
        "paths": ["orders.json", "stock.json"],
        "count": 2,
    }
    word = decision.removeprefix("roll-")
    expected = f"{root}: rolled {word} transaction {pending.transaction_id}: 'orders.json', 'stock.json'"
    assert record.getMessage() == expected


def test_a_record_of_thousands_of_files_is_short(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    def save() -> None:
        with FileTransaction(root, durability="process") as tx:
            for number in range(300):
                tx.write(f"file {number:03}", "new")

    killed(save, "rename", 3)
    with caplog.at_level(logging.DEBUG, "txfiles"):
        [done] = recover(root).rolled_forward
    assert len(done.paths) == 300
    [record] = caplog.records
    assert record.getMessage().endswith("'file 000', 'file 001', 'file 002', 'file 003', 'file 004' and 295 more")
    assert vars(record)["paths"] == done.paths[:5]
    assert vars(record)["count"] == 300


def test_a_transaction_that_recovers_logs_it_too(state: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "txfiles"), FileTransaction(state):
        pass
    assert [vars(record)["decision"] for record in caplog.records] == ["roll-forward"]


def test_the_formatter_of_the_page_writes_the_line_that_the_page_shows(state: Path) -> None:
    names: dict[str, Any] = {}
    exec(block("python", "JsonLines").partition("handler =")[0], names)
    log = logging.getLogger("txfiles")
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(names["JsonLines"]())
    log.addHandler(handler)
    try:
        [done] = recover(state).rolled_forward
    finally:
        log.removeHandler(handler)
    [line] = stream.getvalue().splitlines()
    shown = block("json").replace("6f0c9a2be1d84f5c8a7be0d3c1f49e27", done.transaction_id)
    expected = json.loads(shown.replace("/var/lib/shop", str(state)))
    told = json.loads(line)
    assert told | {"at": ""} == expected | {"at": ""}
    assert list(told) == list(expected)


def test_any_name_can_be_written_to_such_a_log(root: Path) -> None:
    names: dict[str, Any] = {}
    exec(block("python", "JsonLines").partition("handler =")[0], names)
    fields = {"msg": "m", "paths": [os.fsdecode(b"\xff"), "a\nb"]}
    line = names["JsonLines"]().format(logging.makeLogRecord(fields))
    assert line.isascii()
    assert json.loads(line)["paths"] == fields["paths"]
