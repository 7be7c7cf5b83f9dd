"""What docs/filesystems.md says of mounts that are made of others."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import mounts
from tests.support.boundary import tree
from txfiles import FileTransaction, status
from txfiles.errors import UnsupportedFilesystemError
from txfiles.testing import survives_kills

pytestmark = pytest.mark.needs("mount")


@contextmanager
def _overlay(where: Path, lower: Path, *options: str) -> Iterator[Path]:
    """An overlay of an empty layer in `where` over `lower`."""
    layers = where / "upper", where / "work", where / "merged"
    for layer in layers:
        layer.mkdir(parents=True)
    words = ",".join([f"lowerdir={lower},upperdir={layers[0]},workdir={layers[1]}", *options])
    with mounts.mount(layers[2], "-t", "overlay", "-o", words, "overlay"):
        yield layers[2]


def _image(where: Path) -> Path:
    """A lower layer with a root in it."""
    root = where / "lower" / "root"
    root.mkdir(parents=True)
    for name in ("a", "b", "c"):
        (root / name).write_text(f"old {name}", encoding="utf-8")
    return root.parent


def _change(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", "new a")
        tx.delete("b")
        tx.move("c", "d")


CHANGED = {"a": b"new a", "d": b"old c"}


def test_files_of_a_lower_layer_are_replaced_deleted_and_moved(tmp_path: Path) -> None:
    with mounts.tmpfs(tmp_path / "disk") as disk, _overlay(disk, _image(disk)) as merged:
        _change(merged / "root")
        assert tree(merged / "root") == CHANGED
        assert status(merged / "root").clean


def test_a_save_on_an_overlay_survives_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def setup(root: Path) -> None:
        for name in ("a", "b", "c"):
            (root / name).write_text(f"old {name}", encoding="utf-8")

    def check(root: Path) -> None:
        assert tree(root) in (CHANGED, {name: f"old {name}".encode() for name in ("a", "b", "c")})

    with mounts.tmpfs(tmp_path / "disk") as disk, _overlay(disk, _image(disk)) as merged:
        monkeypatch.setattr("tempfile.tempdir", str(merged))
        assert survives_kills(_change, check, setup=setup) > 10


@contextmanager
def _over_a_disk(where: Path, uuid: str, *options: str) -> Iterator[Path]:
    """A root in the lower layer of an overlay: on an ext4 of this UUID, where `clear` is none, as squashfs has none."""
    image, lower = where / "image", where / "disk"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    mounts.run("mkfs.ext4", "-q", "-U", uuid, image)
    lower.mkdir()
    with (
        mounts.mount(lower, "-o", "loop", image),
        mounts.tmpfs(where / "other") as upper,
        _overlay(upper, _image(lower), *options) as merged,
    ):
        yield merged / "root"


@pytest.mark.needs("loop", "ext4")
@pytest.mark.parametrize(("uuid", "option"), [("random", "xino=off"), ("clear", "xino=on"), ("clear", "index=on")])
def test_layers_on_two_file_systems(tmp_path: Path, uuid: str, option: str) -> None:
    with _over_a_disk(tmp_path, uuid, option) as root:
        _change(root)
        assert tree(root) == CHANGED
        assert status(root).clean


@pytest.mark.needs("loop", "ext4")
def test_a_lower_layer_without_uuid_on_another_file_system(tmp_path: Path) -> None:
    """A file changes its inode number when it is copied up."""
    with _over_a_disk(tmp_path, "clear", "xino=off") as root:
        before = tree(root)
        with pytest.raises(UnsupportedFilesystemError, match="two names of the file 'a' with two inode numbers"):
            _change(root)
        assert tree(root) == before
        for text in ("new", "newer"):
            with FileTransaction(root) as tx:
                tx.write("new", text)
        assert status(root).clean


Wrap = Callable[..., list[str]]


@pytest.mark.needs("flock", "unshare")
@pytest.mark.parametrize("wrap", [lambda *argv: list(argv), mounts.unshared], ids=["here", "in a container"])
def test_two_views_of_one_directory_have_one_lock(tmp_path: Path, root: Path, wrap: Wrap) -> None:
    with mounts.bind(root, tmp_path / "view") as view, FileTransaction(view) as tx:
        tx.write("a", "new")
        held = wrap("flock", "--nonblock", "--conflict-exit-code", "75", str(root / ".txfiles/lock"), "true")
        assert subprocess.run(held, check=False).returncode == 75
    assert tree(root) == {"a": b"new"}
