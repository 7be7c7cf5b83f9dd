"""The command line on a root in memory."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from txfiles import FileStore, FileTransaction
from txfiles.cli import main
from txfiles.objects import far
from txfiles.objects.requests import StoreRequests

_numbers = itertools.count()


@pytest.fixture
def url() -> str:
    name = f"memory://cli{next(_numbers)}/prefix"
    with FileTransaction(name, create=True) as tx:
        tx.write("old", "1")
    return name


def told(capsys: pytest.CaptureFixture[str], *arguments: Any, code: int = 0) -> Any:
    assert main([*map(str, arguments), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def files_of(url: str) -> dict[str, bytes]:
    with FileStore(url).snapshot() as snap:
        return {name: snap.read(name) for name in snap.glob("**")}


def test_status_verify_and_recover(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "status", url)["files"] == 1
    assert told(capsys, "verify", url)["sound"]
    with FileTransaction(url) as tx:
        tx.write("new", "1")
    assert told(capsys, "recover", url, "--id", tx.transaction_id)["outcome"] == "after"
    assert main(["recover", url, "--id", "0" * 32]) == 0
    assert "not committed" in capsys.readouterr().out
    assert main(["status", url]) == 0
    assert "files        2" in capsys.readouterr().out


def test_put(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "f").write_bytes(b"x" * 9000)
    assert told(capsys, "put", url, f"a/b={tmp_path}/f")["written"] == {"a/b": 9000}
    assert files_of(url) == {"old": b"1", "a/b": b"x" * 9000}
    assert told(capsys, "put", "memory://nothing", f"a={tmp_path}/f", code=1)["error"]["outcome"] == "before"
    told(capsys, "put", "memory://made", f"a={tmp_path}/f", "--create")
    assert set(files_of("memory://made")) == {"a"}


def test_sync_both_ways(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "sub/empty").mkdir(parents=True)
    target.mkdir()
    for name, data in (("a", b"1"), ("sub/b", b"2" * 9000), ("script", b"#!")):
        (source / name).write_bytes(data)
    (source / "script").chmod(0o755)
    found = told(capsys, "sync", source, url, "--dry-run")
    assert sorted(found["written"]) == ["a", "script", "sub/b"]
    assert set(files_of(url)) == {"old"}
    assert sorted(told(capsys, "sync", source, url)["written"]) == ["a", "script", "sub/b"]
    assert set(files_of(url)) == {"a", "old", "script", "sub/b"}
    (source / "a").write_bytes(b"2")
    found = told(capsys, "sync", source, url, "--delete")
    assert (found["written"], found["deleted"]) == (["a"], ["old"])
    assert told(capsys, "sync", source, url, "--delete")["written"] == []
    assert sorted(told(capsys, "sync", url, target)["written"]) == ["a", "script", "sub/b"]
    assert (target / "sub/b").read_bytes() == b"2" * 9000
    assert (target / "sub/empty").is_dir()
    assert (target / "script").stat().st_mode & 0o111
    assert told(capsys, "sync", url, target, "--delete")["written"] == []
    (target / "extra").write_bytes(b"")
    assert told(capsys, "sync", url, target, "--delete")["deleted"] == ["extra"]


def test_what_is_equal_is_not_fetched(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"1" * 100_000)
    assert main(["sync", str(tmp_path), url, "-q"]) == 0
    far.far_of(url).open().source.cache._held.clear()
    fetched: list[str] = []
    inner = StoreRequests.ranges

    def ranges(self: StoreRequests, key: str, spans: Any) -> list[bytes]:
        fetched.append(key)
        return inner(self, key, spans)

    monkeypatch.setattr(StoreRequests, "ranges", ranges)
    assert main(["sync", str(tmp_path), url, "-q"]) == 0
    assert fetched == []


def test_times_are_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["sync", str(tmp_path), url, "--times"])
    assert caught.value.code == 2


def test_tags_and_gc(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "tag", url, "v1") == {"tag": "v1"}
    assert told(capsys, "tag", url) == {"tags": ["v1"]}
    for n in range(5):
        with FileTransaction(url) as tx:
            tx.write("big", bytes([n]) * 9000)
        found = told(capsys, "gc", url, "--grace-commits", "0", "--grace-seconds", "0")
    assert found["deleted"] > 0
    assert told(capsys, "tag", url, "v1", "--delete") == {"untagged": "v1"}
    assert told(capsys, "tag", url, "v1", "--delete", code=1)["error"]["type"] == "FileNotFoundError"


def test_compact(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with FileTransaction(url) as tx:
        for n in range(4):
            tx.write(f"big/{n}", bytes([n]) * 9000)
    with FileTransaction(url) as tx:
        tx.delete_tree("big")
        tx.write("big/3", b"3" * 9000)
    with FileTransaction(url) as tx:
        tx.write("a", b"1" * 9000)
        tx.write("b", b"2" * 9000)
    with FileTransaction(url) as tx:
        tx.write("b", b"3" * 9000)
    assert told(capsys, "compact", url, "--dead", "0.6") == {"packs": 0, "bytes": 0, "moved": 0, "moved_bytes": 0}
    assert told(capsys, "compact", url) == {"packs": 1, "bytes": 18000, "moved": 1, "moved_bytes": 9000}
    assert main(["compact", url]) == 0
    assert "0 packs" in capsys.readouterr().out
    for wrong in ("0", "1.5", "much"):
        with pytest.raises(SystemExit):
            main(["compact", url, "--dead", wrong])


def test_a_directory_has_neither(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "compact", tmp_path, code=1)["error"]["type"] == "UnsupportedFilesystemError"
    assert told(capsys, "gc", tmp_path, code=1)["error"]["type"] == "UnsupportedFilesystemError"
    assert told(capsys, "tag", tmp_path, "x", code=1)["error"]["type"] == "UnsupportedFilesystemError"


@pytest.fixture(autouse=True)
def _forget() -> Any:
    yield
    far._roots.clear()
    far._memory.clear()
