"""Commits through the log on the simulated file system: a log of few blocks, and steps that each begin anew."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest

import txfiles
from tests.crash.steps import at_call, then
from tests.crash.test_simfs_engine import files
from txfiles import FileStore, FileTransaction, RecoveryReport
from txfiles._commit import levels
from txfiles._commit.checkpoint import checkpoint
from txfiles._commit.home import Home
from txfiles._commit.logfile import LogFile
from txfiles._commit.recover import OnConflict
from txfiles._disk import system
from txfiles._format import log
from txfiles.errors import CommitError, CommitOutcomeUnknownError
from txfiles.testing import Crash, Scenario, SimFS, Tree
from txfiles.testing._simfs import KILL

Change = Callable[[FileTransaction], object]


@contextmanager
def small() -> Iterator[None]:
    """So that a log is full after a few records, and copied in no time."""
    before = log.SIZE, log.KNOWN, log.FIRST
    log.SIZE, log.KNOWN, log.FIRST = 8 * log.BLOCK, log.BLOCK, 4 * log.BLOCK
    try:
        yield
    finally:
        log.SIZE, log.KNOWN, log.FIRST = before


@contextmanager
def at_rest() -> Iterator[tuple[Home, LogFile]]:
    """The root with its log, recovered."""
    with small(), Home.open(system.current(), b"/sim", create=False) as home:
        home.lock.acquire(10, object())
        levels.enter(home, "journal")
        file = levels.log_of(home)
        assert file is not None
        yield home, file


def committed(change: Change, plan: Callable[[int, str], None] | None = None) -> Callable[[SimFS], None]:
    """With `plan` from where the commit begins; what it makes fail is raised."""

    def step(fs: SimFS) -> None:
        with small():
            tx = FileTransaction("/sim", durability="journal").begin()
            change(tx)
            fs.plan = plan
            try:
                tx.commit()
            finally:
                fs.plan = None

    return step


def write(**contents: str) -> Change:
    def change(tx: FileTransaction) -> None:
        for name, content in contents.items():
            tx.write(name.replace("_", "/"), content)

    return change


def delete(*names: str) -> Change:
    def change(tx: FileTransaction) -> None:
        for name in names:
            tx.delete(name)

    return change


def both(*changes: Change) -> Change:
    def change(tx: FileTransaction) -> None:
        for one in changes:
            one(tx)

    return change


def failing(change: Change, name: str, number: int = 1) -> Callable[[SimFS], None]:
    """A commit in which one call fails; nothing has changed then."""

    def step(fs: SimFS) -> None:
        with suppress(CommitError):
            committed(change, at_call(name, number, fail))(fs)

    return step


def fail() -> None:
    raise OSError(errno.EIO, "injected")


def die() -> None:
    raise Crash


def killed(act: Callable[[SimFS], None]) -> Callable[[SimFS], None]:
    """What was killed, as another process finds it; nothing but what was synced is durable."""

    def step(fs: SimFS) -> None:
        with pytest.raises(Crash):
            act(fs)
        survivor = fs.survive(KILL)
        survivor.watch = fs.watch
        vars(fs).update(vars(survivor))

    return step


def killed_at(name: str, number: int) -> Callable[[SimFS], None]:
    def act(fs: SimFS) -> None:
        committed(WRITES, at_call(name, number, die))(fs)

    return killed(act)


def undo_dies(fs: SimFS) -> None:
    """The second exchange fails, and the process dies when the first has been taken back."""

    def fail_and_die_later() -> None:
        fs.plan = at_call("sync_dir", 1, die)
        fail()

    committed(WRITES, at_call("exchange", 2, fail_and_die_later))(fs)


def new_directory(fs: SimFS) -> None:
    """Of another program, which has not synced it."""
    fs.mkdirs("/sim/new/deep", synced=False)


def checkpoint_of_closed(fs: SimFS) -> None:
    """The file has become one that may not be opened."""

    def refuse() -> None:
        raise PermissionError(errno.EACCES, "injected")

    with at_rest() as (home, file):
        fs.plan = at_call("open_read", 1, refuse)
        checkpoint(home, file)
        fs.plan = None


def checkpoint_dies(fs: SimFS) -> None:
    with at_rest() as (home, file):
        fs.plan = at_call("sync_file", 1, die)
        checkpoint(home, file)


def restart_dies(fs: SimFS) -> None:
    with at_rest() as (home, file):
        fs.plan = at_call("sync_data", 1, die)
        checkpoint(home, file)


def renew_fails(fs: SimFS) -> None:
    """The sync of the record fails, and then the one that makes the name of another log durable."""

    def plan(number: int, name: str) -> None:
        if name == "rename":
            fs.plan = at_call("sync_dir", 1, fail)
        if name == "sync_data":
            fail()

    with pytest.raises(CommitOutcomeUnknownError):
        committed(WRITES, plan)(fs)


def mounted_again(act: Callable[[SimFS], None]) -> Callable[[SimFS], None]:
    """The same machine, and another mount: a sync may have failed with nobody left to tell."""

    def step(fs: SimFS) -> None:
        act(fs)
        vars(fs).update(vars(remounted(fs)))

    return step


def remounted(fs: SimFS) -> SimFS:
    survivor = fs.survive(KILL)
    survivor.watch = fs.watch
    survivor._mounted += 1
    return survivor


def edited(fs: SimFS) -> None:
    """By another program, durably."""
    fs.put("/sim/a", "theirs, later")
    fs.sync_everything()


def edited_unsynced(fs: SimFS) -> None:
    fs.put("/sim/a", "theirs", synced=False)


def theirs_goes(fs: SimFS) -> None:
    """Removed by another program, which has not synced that."""
    fs.remove("/sim/d", synced=False)


def killed_behind_sync(fs: SimFS) -> None:
    """The record is durable, and nothing is applied."""
    system_step(fs, killed_at("write_at", 2))


def failed_checkpoint(fs: SimFS) -> None:
    system_step(fs, failing_checkpoint)


def killed_full(fs: SimFS) -> None:
    """A commit by the other protocol, between two targets."""

    def act(fs: SimFS) -> None:
        with small():
            tx = FileTransaction("/sim").begin()
            WRITES(tx)
            fs.plan = at_call("rename", 3, die)
            tx.commit()

    system_step(fs, killed(act))


def failed_recovery(fs: SimFS) -> None:
    """What a kill had cut off is in place again, and the sync of it fails."""
    system_step(fs, killed_at("exchange", 2))
    fs.plan = lambda _, name: fail() if name == "sync_file" else None
    with suppress(OSError), system.use(fs):
        recover(fs)
    fs.plan = None


def tainted(fs: SimFS) -> None:
    system_step(fs, renew_fails)


def tainted_and_killed(fs: SimFS) -> None:
    """The one that recovers it, before it has made another log."""

    def act(fs: SimFS) -> None:
        fs.plan = at_call("allocate", 1, die)
        recover(fs)

    tainted(fs)
    system_step(fs, killed(act))


def failing_checkpoint(fs: SimFS) -> None:
    """Each sync of a file fails, also of those that are made anew."""

    def plan(number: int, name: str) -> None:
        if name == "sync_file":
            fail()

    committed(WRITES)(fs)
    with at_rest() as (home, file), suppress(OSError):
        fs.plan = plan
        try:
            checkpoint(home, file)
        finally:
            fs.plan = None


def without_tail(fs: SimFS) -> None:
    """As after a power loss that has lost nothing else."""
    committed(WRITES)(fs)
    fs.put("/sim/.txfiles/tail", "?")


def checkpoint_fails(name: str, number: int = 1) -> Callable[[SimFS], None]:
    def step(fs: SimFS) -> None:
        with at_rest() as (home, file), suppress(OSError):
            fs.plan = at_call(name, number, fail)
            try:
                checkpoint(home, file)
            finally:
                fs.plan = None

    return step


WRITES = write(a="third a", b="new b")


def checkpointed(fs: SimFS) -> None:
    with at_rest() as (home, file):
        checkpoint(home, file)


def full(change: Change) -> Callable[[SimFS], None]:
    """A commit by the other protocol."""

    def step(fs: SimFS) -> None:
        with small(), FileTransaction("/sim") as tx:
            change(tx)

    return step


def removed(fs: SimFS) -> None:
    with small():
        FileStore("/sim").remove_log()


def recover(fs: SimFS, on_conflict: OnConflict = "raise") -> RecoveryReport:
    with small():
        return txfiles.recover("/sim", on_conflict=on_conflict)


def fresh(fs: SimFS) -> None:
    """A root that has seen no transaction."""
    fs.put("/sim/a", "old a")
    fs.sync_everything()


def with_log(fs: SimFS) -> None:
    """The state before: a root whose log has an empty generation behind it."""
    files(fs)
    system_step(fs, committed(write(a="older a")))
    system_step(fs, checkpointed)
    fs.sync_everything()


def system_step(fs: SimFS, step: Callable[[SimFS], None]) -> None:
    with system.use(fs):
        step(fs)


def with_record(fs: SimFS) -> None:
    """The same, with a record that is not settled."""
    with_log(fs)
    system_step(fs, committed(write(c="new c", a="second a")))


def check(fs: SimFS, allowed: Sequence[Tree]) -> None:
    assert fs.tree("/sim") in allowed, "the tree after recovery is none of those allowed"
    private = fs.names("/sim/.txfiles") if fs.exists("/sim/.txfiles") else set()
    left = private - {"format", "lock", "HEAD", "log", "tail"}
    assert not left, f"left in the private directory: {left}"
    assert not fs.open_files


def check_files(fs: SimFS, allowed: Sequence[Tree]) -> None:
    """Directories of others may have been lost with the power."""
    files = [{path: one for path, one in tree.items() if one.kind != "dir"} for tree in allowed]
    left = {path: one for path, one in fs.tree("/sim").items() if one.kind != "dir"}
    assert left in files, "the files after recovery are none of those allowed"


def check_in_doubt(fs: SimFS, allowed: Sequence[Tree]) -> None:
    """Before it there was a commit of which nobody knows."""
    done = [{**tree, "b": tree["b"]._replace(content=b"new b")} for tree in allowed]
    for tree in done:
        if tree["a"].content == b"older a":
            tree["a"] = tree["a"]._replace(content=b"third a")
    check(fs, [*allowed, *done])


def check_pair(fs: SimFS, allowed: Sequence[Tree]) -> None:
    """What was cut off is there as a whole or not at all, and so is what comes behind it."""
    tree = fs.tree("/sim")
    pairs = [(b"third a", b"new b"), (b"older a", b"old b"), (b"third a", b"1"), (b"older a", b"1")]
    assert (tree["a"].content, tree["b"].content) in pairs, "a mix"
    assert tree["b"].content == b"1" or not all(one["b"].content == b"1" for one in allowed), "it is lost"


def check_but_theirs(fs: SimFS, allowed: Sequence[Tree]) -> None:
    """What they have not synced may come back as anything, until it is replaced."""
    if any(tree["a"].content in (b"theirs", b"older a") for tree in allowed):
        allowed = [{**tree, "a": fs.tree("/sim")["a"]} for tree in allowed]
    check(fs, allowed)


def check_but_gone(fs: SimFS, allowed: Sequence[Tree]) -> None:
    """What they have removed may be there until it is replaced."""
    now = fs.tree("/sim").get("d")
    d = {} if now is None else {"d": now}
    if now is None or now.content == b"old d":
        undecided = [tree for tree in allowed if "d" not in tree or tree["d"].content == b"old d"]
        allowed = [*allowed, *({**{path: one for path, one in tree.items() if path != "d"}, **d} for tree in undecided)]
    check(fs, allowed)


def failed(name: str, change: Change, call: str, number: int = 1) -> Scenario:
    step, attempt = failing(change, call, number), committed(change)
    return Scenario(name, with_record, [step], recover=recover, check=check, attempt=attempt)


def case(name: str, *steps: Callable[[SimFS], None], **settings: object) -> Scenario:
    return Scenario(name, with_log, steps, recover=recover, check=check, **settings)  # type: ignore[arg-type]


def recovered(name: str, *before: Callable[[SimFS], None], attempt: Callable[[SimFS], None] | None = None) -> Scenario:
    """Every crash of a recovery, and what it made is durable when it returns."""

    def setup(fs: SimFS) -> None:
        with_record(fs)
        for one in before:
            system_step(fs, one)

    return Scenario(name, setup, [recover], recover=recover, check=check, attempt=attempt)


SCENARIOS = {
    one.name: one
    for one in [
        Scenario("log-first", files, [committed(write(a="new a"))], recover=recover, check=check),
        Scenario("log-fresh", fresh, [committed(write(a="new a"))], recover=recover, check=check),
        case("log-full-between", full(write(a="1", b="1")), committed(write(a="2")), full(delete("a"))),
        case("log-behind-delete", full(delete("a")), committed(write(a="2"))),
        case("log-removed", committed(write(a="1", b="2")), removed, full(write(a="3"))),
        case("log-two", committed(write(a="new a", b="new b", e="new e"))),
        case("log-of-pages", committed(write(a="new a" * 1000, b="new b" * 1000))),
        case("log-delete", committed(both(write(a="new a"), delete("b")))),
        case("log-again", committed(write(a="new a", dir_new="1")), committed(write(a="third a", b="2"))),
        case("log-checkpoint", committed(write(a="new a", b="new b")), checkpointed, committed(write(a="third a"))),
        case("log-comes-and-goes", committed(write(e="new e", a="1")), committed(delete("e", "a"))),
        failed("log-sync-fails", write(a="third a", b="new b"), "sync_data"),
        failed("log-write-fails", write(a="third a", b="new b"), "write_at"),
        failed("log-exchange-fails", write(a="third a", b="new b"), "exchange", 2),
        failed("log-new-fails", both(write(a="third a", e="new e"), delete("b")), "rename_new", 2),
        case("log-checkpoint-fails", committed(write(a="1", b="2")), checkpoint_fails("sync_file")),
        case("log-checkpoint-fails-later", committed(write(a="1", b="2")), checkpoint_fails("sync_file", 2)),
        case(
            "log-header-fails", committed(write(a="1", b="2")), checkpoint_fails("sync_data"), committed(write(a="3"))
        ),
        recovered("log-recover-unsynced", killed_at("sync_data", 1)),
        recovered("log-recover-applying", killed_at("exchange", 2)),
        recovered("log-recover-undoing", killed(undo_dies), attempt=committed(WRITES)),
        recovered("log-recover-syncing", killed(checkpoint_dies)),
        recovered("log-recover-restarted", killed(restart_dies)),
        recovered("log-recover-anew", without_tail),
        case("log-closed-file", committed(write(a="1")), checkpoint_of_closed, committed(write(b="2"))),
        Scenario(
            "log-new-directory",
            then(with_log, new_directory),
            [committed(write(new_deep_f="1"))],
            recover=recover,
            check=check_files,
        ),
        Scenario(
            "log-tainted", then(with_log, tainted), [committed(write(a="3"))], recover=recover, check=check_in_doubt
        ),
        Scenario(
            "log-tainted-and-killed",
            then(with_log, tainted_and_killed),
            [committed(write(a="3"))],
            recover=recover,
            check=check_in_doubt,
        ),
        recovered("log-recover-mounted-again", mounted_again(committed(WRITES))),
        recovered("log-recover-failed-sync-and-mounted", mounted_again(failing_checkpoint)),
        case(
            "log-vouched",
            committed(write(a="1", b="1")),
            checkpointed,
            committed(write(a="2")),
            committed(write(b="2")),
        ),
        Scenario("log-theirs", then(with_record, edited), [committed(write(a="2"))], recover=recover, check=check),
        Scenario(
            "log-full-behind-killed",
            then(with_log, killed_behind_sync),
            [full(write(a="full"))],
            recover=recover,
            check=check_in_doubt,
        ),
        case(
            "log-new-again",
            committed(write(dir_new="1")),
            committed(write(dir_more="2", g="3")),
            committed(write(e="4")),
        ),
        Scenario(
            "log-new-where-theirs-was",
            with_log,
            [committed(write(e="1")), then(theirs_goes, committed(write(d="2")))],
            recover=recover,
            check=check_but_gone,
        ),
        Scenario(
            "log-new-later-where-theirs-was",
            with_log,
            [committed(write(e="1")), then(theirs_goes, committed(write(a="2"))), committed(write(d="3"))],
            recover=recover,
            check=check_but_gone,
        ),
        Scenario(
            "log-theirs-where-names-are-known",
            with_log,
            [committed(write(e="1")), then(edited_unsynced, committed(write(a="2")))],
            recover=recover,
            check=check_but_theirs,
        ),
        failed("log-old-sync-fails", write(a="third a", b="new b"), "sync_file"),
        Scenario(
            "log-behind-killed-full",
            then(with_log, killed_full),
            [committed(write(b="1"))],
            recover=recover,
            check=check_pair,
        ),
        Scenario(
            "log-behind-failed-checkpoint",
            then(with_log, failed_checkpoint),
            [committed(write(e="1")), checkpointed],
            recover=recover,
            check=check,
        ),
        Scenario(
            "log-behind-failed-recovery",
            then(with_log, failed_recovery),
            [committed(write(e="1")), checkpointed],
            recover=recover,
            check=check,
        ),
        Scenario(
            "log-theirs-unsynced",
            then(with_record, edited_unsynced),
            [committed(write(a="2"))],
            recover=recover,
            check=check_but_theirs,
        ),
        case("log-back-again", committed(delete("a")), committed(write(a="back", b="b"))),
    ]
}
