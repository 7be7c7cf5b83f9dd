"""What a killed process left is removed; what one that runs uses stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import scratch
from tests.support.procs import child


@pytest.mark.parametrize("where", [None, scratch.MEMORY])
def test_what_a_killed_process_left_goes(where: str | None) -> None:
    mine = scratch.directory(where)
    try:
        code = "from tests.support import scratch; print(scratch.directory(sys.argv[1] or None)); input()"
        with child(code, where or "") as process:
            left = Path(process.expect("txfiles-"))
            (left / "sub").mkdir()
            scratch.sweep()
            assert left.is_dir()
            process.kill()
        scratch.sweep()
        assert not left.exists()
        assert mine.is_dir()
    finally:
        mine.rmdir()


def test_one_that_is_held_goes_with_its_block(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ZeroDivisionError), scratch.held() as path:
        assert path.name.startswith(f"txfiles-{os.getpid()}-")
        assert path.is_dir()
        (path / "file").touch()
        raise ZeroDivisionError
    assert not path.exists()
