"""Whether a save survives: killed at every step on the real file system, and without power in the simulated one."""

from __future__ import annotations

import functools
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from txfiles import recovery
from txfiles._format.layout import PRIVATE
from txfiles.testing import _explorer, _replay, _report
from txfiles.testing._killed import content_of, run_and_kill
from txfiles.testing._past import Past
from txfiles.testing._scenario import Scenario, quiet
from txfiles.testing._simfs import SimFS
from txfiles.testing._simnode import Kind
from txfiles.testing._simtree import Entry, Tree

Act = Callable[[Path], object]

_KILL = re.compile(r"txfiles-replay: kill=([1-9]\d*)")


def survives_kills(
    save: Act,
    check: Act,
    *,
    setup: Act | None = None,
    recover: Act = recovery.recover,
    where: str | Path | None = None,
    replay: str | None = None,
) -> int:
    """Kill `save(root)` at every step, recover, and `check(root)`, which raises or returns `False` if `root` is wrong.

    For each kill there is a new directory `root` in `where` (default: with the temporary files), `setup(root)` makes
    the state before, and a forked child saves. The first child kills itself (SIGKILL) before it has changed anything,
    each next one a change later; the last one comes to the end of the save. So every state is met that a kill between
    two calls to the system can leave, whether or not the save uses txfiles. `recover(root)` and the check then run in
    this process.

    What code in C does within one call is one step. Threads of `threading` are watched, other processes are not. A
    save of n steps runs n times: keep the data small. Needs fork(2).

    Returns the number of kills. Raises `AssertionError` when recovery or the check fails, with a line for `replay`,
    which runs that kill only, and the files; also when the save fails without being killed, or changes nothing.
    """
    if replay is not None:
        if not (match := _KILL.search(replay)):
            raise ValueError(f"not a line to replay a kill: {replay!r}")
        if not _Kill(save, check, setup, recover, where).at(int(match[1])):
            raise ValueError(f"the save came to its end before that: {replay!r}")
        return 1
    number = 1
    while _Kill(save, check, setup, recover, where).at(number):
        number += 1
    if number <= 2:
        raise AssertionError("the save changed nothing in the directory that it was given")
    return number - 1


def survives_power_loss(
    save: Act,
    check: Act,
    *,
    setup: Act | None = None,
    recover: Act = recovery.recover,
    caps: Sequence[int] = (64,),
    seed: int = 0,
    replay: str | None = None,
) -> _explorer.Explored:
    """Crash `save(root)` after each call in a simulated file system, by a kill and by a power loss, and recover.

    For saves that write through txfiles only: for everybody else `root` is an empty directory, and what is called there
    past txfiles is in the report of a failure. `setup(root)` makes
    the state before in a real directory, from where it is copied. Of what was not synced each subset survives, as far
    as `caps` goes (see `explore`); with `(64, 8)` the recoveries are crashed too, which takes about a minute.

    The trees must be like before or like after the save, and like after once it has returned. `check(root)` is called
    with a real copy of each, and raises or returns `False` if it is wrong.

    Raises `AssertionError` with a line for `replay`, the calls with the crash marked, and the trees.
    """
    with _directory(None) as root:
        past = Past(root)
        scenario = _Saved(
            getattr(save, "__name__", "save"),
            functools.partial(_put, str(root), _made_by(setup)),
            [functools.partial(_save_in, save, root, past)],
            recover=lambda _: recover(root),
            root=str(root),
            judge=_Judge(check),
        )
        try:
            if replay is None:
                return _explorer.explore(scenario, caps, seed)
            _replay.replay(replay, [scenario])
            return _explorer.Explored()
        except Exception as error:
            past.tell(error)
            raise


# -- the real file system -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kill:
    save: Act
    check: Act
    setup: Act | None
    recover: Act
    where: str | Path | None

    def at(self, number: int) -> bool:
        """Whether the save was still running in state `number` of the directory, and was killed."""
        with _directory(self.where) as root:
            if self.setup is not None:
                self.setup(root)
            before = tree_of(root)
            place = run_and_kill(lambda: self.save(root), root, number)
            try:
                with quiet():
                    self.recover(root)
                _judged(self.check, root)
            except Exception as error:
                how = f"the save was killed {place}" if place else "the save has returned"
                told = [f"after {how}:", repr(error)]
                told += [f"txfiles-replay: kill={number}"] if place else []
                told += [_report.side_by_side({"before": before, "found": tree_of(root)})]
                raise AssertionError("\n".join(told)) from error
        return place is not None


@contextmanager
def _directory(where: str | Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="crash-", dir=where) as above:
        root = Path(above, "root")
        root.mkdir()
        yield root


def _judged(check: Act, root: Path) -> None:
    if check(root) is False:
        raise AssertionError("the check returned False")


def tree_of(root: Path) -> Tree:
    """What is below a real directory, without private directories and what is no file, link or directory."""
    found: Tree = {}
    for above, directories, files in os.walk(os.fsencode(root)):
        if PRIVATE in directories:
            directories.remove(PRIVATE)
        for name in (*directories, *files):
            path = os.path.join(above, name)
            at = os.lstat(path)
            link, directory = stat.S_ISLNK(at.st_mode), stat.S_ISDIR(at.st_mode)
            if link or directory or stat.S_ISREG(at.st_mode):
                shown = os.fsdecode(os.path.relpath(path, os.fsencode(root)))
                kind: Kind = "link" if link else "dir" if directory else "file"
                mode = stat.S_IMODE(at.st_mode)
                found[shown] = Entry(kind, content_of(path, at.st_mode), mode, at.st_uid, at.st_gid, ())
    return found


# -- the simulated file system --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Saved(Scenario):
    """A scenario with a check of the user besides its own."""

    judge: Callable[[Tree], None] | None = None

    def check_recovered(self, fs: SimFS, allowed: Sequence[Tree]) -> None:
        super().check_recovered(fs, allowed)
        if self.judge is not None:
            self.judge(fs.tree(self.root))


class _Judge:
    """Calls the check with a real copy of a simulated tree, once for each tree."""

    def __init__(self, check: Act) -> None:
        self._check = check
        self._passed: list[Tree] = []

    def __call__(self, tree: Tree) -> None:
        if tree in self._passed:
            return
        with _directory(None) as root:
            for path, entry in sorted(tree.items()):
                _make(root / path, entry)
            for path, entry in sorted(tree.items(), reverse=True):
                if entry.kind != "link":
                    os.chmod(root / path, entry.mode)
            try:
                _judged(self._check, root)
            except Exception as error:
                raise AssertionError(f"the check fails: {error!r}") from error
        self._passed.append(tree)


def _make(path: Path, entry: Entry) -> None:
    if entry.kind == "dir":
        path.mkdir()
    elif entry.kind == "link":
        path.symlink_to(os.fsdecode(entry.content))
    else:
        path.write_bytes(entry.content)


def _made_by(setup: Act | None) -> Tree:
    if setup is None:
        return {}
    with _directory(None) as root:
        setup(root)
        return tree_of(root)


def _put(root: str, tree: Tree, fs: SimFS) -> None:
    for path, entry in sorted(tree.items()):
        name = f"{root}/{path}"
        if entry.kind == "dir":
            fs.mkdirs(name, mode=entry.mode)
        elif entry.kind == "link":
            fs.put_symlink(name, entry.content)
        else:
            fs.put(name, entry.content, mode=entry.mode)


def _save_in(save: Act, root: Path, past: Past, fs: SimFS) -> None:
    before = fs.disk.version
    with past.watched():
        save(root)
    if there := sorted(os.listdir(root)):
        raise AssertionError(f"the save wrote past txfiles: {', '.join(map(repr, there))}")
    if fs.disk.version == before:
        raise AssertionError("the save changed nothing in the directory that it was given")
