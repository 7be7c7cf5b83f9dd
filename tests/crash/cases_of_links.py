"""Links out of the root: what is behind them changes with the rest or not at all, and not if they lead elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.crash.case_steps import restart
from tests.crash.steps import at_call, case, dying, private, refused, shows, then, to_aborting, to_intent
from tests.crash.steps_of_others import at_rest
from tests.crash.test_simfs_engine import files
from txfiles import FileTransaction, recover
from txfiles.errors import CommitError, ConflictError, RecoveryConflictError, RecoveryError
from txfiles.testing import Scenario, SimFS, Tree


def linked(fs: SimFS) -> None:
    """The files of the root, and links to others beside it."""
    fs.mkdirs("/sim")
    files(fs)
    fs.mkdirs("/out/deep")
    for name in ("f", "g", "deep/h"):
        fs.put(f"/out/{name}", f"old {name}")
    fs.put_symlink("/sim/to-f", "/out/f")
    fs.put_symlink("/sim/to-out", "../out")
    fs.put_symlink("/out/to-h", "deep/h")


def commit(change: Callable[[FileTransaction], None]) -> Callable[[SimFS], None]:
    def step(fs: SimFS) -> None:
        with FileTransaction("/sim", links="follow") as tx:
            change(tx)

    return step


def follow(fs: SimFS) -> None:
    recover("/sim", links="follow")


def out_and_in(tx: FileTransaction) -> None:
    tx.write("to-f", "new f")
    tx.write("a", "new a")
    tx.write("to-out/to-h", "new h")
    tx.delete("to-out/g")


def new_and_moved(tx: FileTransaction) -> None:
    tx.write("to-out/new/i", "new i")
    tx.move("to-out/deep", "deep")
    tx.move("b", "to-out/b")


def the_way_is_unsynced(fs: SimFS) -> None:
    """Somebody made a directory, and a link to a file to be in it in a directory of the root, and synced nothing."""
    linked(fs)
    fs.sync_everything()
    fs.mkdirs("/far/away", synced=False)
    fs.mkdirs("/sim/links", synced=False)
    fs.put_symlink("/sim/links/there", "/far/by", synced=False)
    fs.put_symlink("/far/by", "away/f", synced=False)


def through_it(tx: FileTransaction) -> None:
    tx.write("links/there", "new f")
    tx.write("a", "new a")


def there_once_returned(fs: SimFS, allowed: Sequence[Tree]) -> None:
    """The file out of the root comes with the one in it, and the links to it are there."""
    at_rest(fs, allowed)
    is_new = fs.get("/sim/a") == b"new a"
    assert is_new or len(allowed) > 1
    if is_new:
        assert fs.get("/sim/links/there") == fs.get("/far/away/f") == b"new f"


def into_deep(tx: FileTransaction) -> None:
    tx.write("to-out/deep/new", "new")
    tx.write("a", "new a")


def new_in_deep(fs: SimFS, allowed: Sequence[Tree]) -> None:
    at_rest(fs, allowed)
    assert fs.get("/out/deep/new") == b"new"


def deep_goes_and_comes(fs: SimFS) -> None:
    """Somebody makes a directory anew that is out of the root, and does not sync it."""
    fs.remove("/out/deep/h")
    fs.remove("/out/deep")
    fs.mkdirs("/out/deep", synced=False)


def points(text: str, link: str = "/sim/to-f") -> Callable[[SimFS], None]:
    """Somebody lets a link lead elsewhere."""

    def step(fs: SimFS) -> None:
        fs.remove(link)
        fs.put_symlink(link, text)

    return step


def refuses(*paths: str, **settings: str) -> Callable[[SimFS], None]:
    def step(fs: SimFS) -> None:
        before = fs.tree("/", skip_private=False)
        with pytest.raises(RecoveryConflictError) as refusal:
            recover("/sim", links="follow", **settings)  # type: ignore[arg-type]
        assert refusal.value.paths == (paths or ("to-f",))
        assert fs.tree("/", skip_private=False) == before

    return step


def decide(how: str) -> Callable[[SimFS], None]:
    def step(_: SimFS) -> None:
        recover("/sim", links="follow", on_conflict=how)  # type: ignore[arg-type]

    return step


def out(**contents: str) -> Callable[[SimFS], None]:
    def step(fs: SimFS) -> None:
        for name, content in contents.items():
            assert fs.get(f"/out/{name}").decode() == content

    return step


def another_directory(fs: SimFS) -> None:
    """Of the same name, with the same file in it."""
    at = fs.open_dir(None, b"/")
    fs.rename(at, b"out", at, b"moved")
    fs.close(at)
    fs.mkdirs("/out")
    fs.put_link("/out/f", "/moved/f")
    fs.sync_everything()


def copied_journal(fs: SimFS) -> None:
    """What is private was copied, and its journal is another file."""
    path = private(fs, ".committed")
    content = fs.get(path)
    fs.put("/kept", "")  # so that its number is free for nobody
    fs.put_link("/old", path)
    fs.remove(path)
    fs.put(path, content, mode=0o600)


def swapped_way(fs: SimFS) -> None:
    points("/out/deep", "/sim/to-out")(fs)


def swapped_before_commit(fs: SimFS) -> None:
    fs.put("/out/other", "other")
    with pytest.raises(ConflictError) as conflict, FileTransaction("/sim", links="follow") as tx:
        tx.write("a", "new a")
        tx.write("to-f", "new f")
        points("/out/other")(fs)
    assert (conflict.value.path, conflict.value.outcome) == ("to-f", "before")


def fails_and_is_undone(fs: SimFS) -> None:
    def fail() -> None:
        raise OSError(5, "injected")

    with pytest.raises(CommitError), FileTransaction("/sim", links="follow") as tx:
        out_and_in(tx)
        fs.plan = at_call("rename", 5, fail)
    fs.plan = None


DYING = dying(out_and_in, "rename", 3, links="follow")  # after the commit point and the delete
BEGUN = dying(out_and_in, "rename", 2, links="follow")
DONE = dying(out_and_in, "rename", 6, links="follow")
UNSYNCED = dying(out_and_in, "rename", 3, links="follow", durability="process")
WAYS = [
    Scenario("links-out", linked, [commit(out_and_in)], recover=follow, root="/"),
    Scenario("links-out-directories", linked, [commit(new_and_moved)], recover=follow, root="/"),
    Scenario(
        "links-out-unsynced",
        the_way_is_unsynced,
        [commit(through_it)],
        recover=follow,
        check=there_once_returned,
        root="/",
    ),
    Scenario(
        "links-out-made-anew",
        then(linked, dying(into_deep, "rename", 2, links="follow"), deep_goes_and_comes),
        [follow],
        recover=decide("roll-forward"),
        check=new_in_deep,
        root="/",
    ),
]
CASES = {
    one.name: one
    for one in [
        *WAYS,
        case("link-not-followed", linked, DYING, refused(RecoveryError), shows(a="old a"), out(f="old f")),
        case("link-followed", linked, DYING, follow, shows(a="new a"), out(f="new f", **{"deep/h": "new h"})),
        case("link-swapped", linked, DYING, points("/out/other"), refuses(), out(f="old f")),
        case("link-gone", linked, DYING, lambda fs: fs.remove("/sim/to-f"), refuses(), out(f="old f")),
        case("link-leads-in", linked, DYING, points("a"), refuses(), out(f="old f")),
        case("link-of-others", linked, DYING, points("/out/f"), follow, out(f="new f")),
        case(
            "link-swapped-theirs",
            linked,
            DYING,
            points("/out/other"),
            decide("keep-theirs"),
            shows(a="new a"),
            out(f="old f", **{"deep/h": "new h"}),
        ),
        case("link-swapped-forward", linked, DYING, points("/out/other"), refuses(on_conflict="roll-forward")),
        case(
            "link-swapped-back",
            linked,
            DYING,
            points("/out/other"),
            decide("roll-back"),
            shows(a="old a"),
            out(f="old f", g="old g"),
        ),
        case("link-swapped-intent", linked, DYING, to_intent, points("/out/other"), refuses(), out(f="old f")),
        case("link-swapped-aborting", linked, DYING, to_aborting, points("/out/other"), refuses(), out(f="old f")),
        case(
            "link-swapped-aborting-theirs",
            linked,
            DYING,
            to_aborting,
            points("/out/other"),
            decide("keep-theirs"),
            shows(a="old a"),
            out(f="old f", g="old g"),
        ),
        case("link-swapped-when-done", linked, DONE, points("/out/other"), swapped_way, follow, out(f="new f")),
        case("link-swapped-before-delete", linked, BEGUN, swapped_way, refuses("to-out/g", "to-out/to-h")),
        case(
            "link-swapped-after-delete",
            linked,
            DYING,
            swapped_way,
            refuses("to-out/to-h"),
            decide("keep-theirs"),
            out(f="new f", **{"deep/h": "old deep/h"}),
        ),
        case("link-to-another-directory", linked, DYING, another_directory, refuses("to-f", "to-out/to-h")),
        case("link-copied", linked, DYING, copied_journal, refuses("to-f", "to-out/to-h"), out(f="old f")),
        case(
            "link-swapped-name-lost",
            linked,
            BEGUN,
            to_intent,
            restart,
            lambda fs: fs.remove("/out/f"),
            points("/out/other"),
            refuses(),
            decide("keep-theirs"),
            out(f="old f"),
        ),
        case(
            "link-name-lost",
            linked,
            BEGUN,
            to_intent,
            restart,
            lambda fs: fs.remove("/out/f"),
            follow,
            out(f="old f"),
        ),
        case("link-not-followed-process", linked, UNSYNCED, restart, refused(RecoveryError)),
        case("links-undone", linked, fails_and_is_undone, shows(a="old a"), out(f="old f", g="old g")),
        case("link-swapped-before-commit", linked, swapped_before_commit, shows(a="old a"), out(f="old f")),
    ]
}
