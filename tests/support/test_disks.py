"""A place shows what a power loss would leave, step by step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.disks import Place
from tests.support.loop import loop_fs
from txfiles import FileTransaction

pytestmark = pytest.mark.needs("loop", "ext4")


def test_every_step_is_looked_at_once_and_the_last_has_all(tmp_path: Path) -> None:
    seen: list[tuple[str, bool]] = []
    with loop_fs(tmp_path, "ext4") as fs:
        place = Place(fs, fs.path / "root")
        place.root.mkdir()
        place.sync()

        def work() -> None:
            with FileTransaction(place.root) as tx:
                tx.write("a", "new")

        count = place.after_each(
            "rename", "sync_dir", work=work, look=lambda copy, where: seen.append((where, (copy / "a").exists()))
        )
        assert count == len(seen)
        with place.after_power_loss() as copy:
            assert (copy / "a").read_text(encoding="utf-8") == "new"
    assert [there for _, there in seen] == sorted(there for _, there in seen)
    assert seen[-1][1]
    assert not seen[0][1]
    assert seen[0][0] == "after call 1 (rename)"
