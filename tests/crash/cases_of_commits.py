"""Cases about what a commit makes durable and takes back (G2, G4): its syncs, an undo in it, new roots."""

from __future__ import annotations

from tests.crash import steps as s
from tests.crash import steps_of_syncs as d
from tests.crash.case_steps import (
    begin_process,
    beside_mkdir,
    decided,
    directory,
    entry,
    keep_theirs_is_refused,
    meddled_commit,
    nothing_left,
    removed,
    syncs_of,
    undo_interrupted,
    undone_beside_emptied,
    undone_beside_removal,
    undone_process,
    undone_without_old,
    without_sync,
)
from tests.crash.steps import (
    PRIVATE,
    WRITES,
    case,
    copied,
    copy_is,
    damage,
    dying,
    overwrite,
    private,
    recover_copy,
    refused,
    replaced,
    shows,
    to_aborting,
)
from tests.crash.steps_of_syncs import recover_now
from tests.crash.steps_of_versions import first_version
from tests.crash.test_simfs_engine import commit, everything, never_used, rotate_directory, write
from txfiles.errors import RecoveryError
from txfiles.testing import Scenario

CASES = {
    one.name: one
    for one in [
        case("no-sync", without_sync(undone_process, commit(everything, durability="process"))),
        case(
            "no-sync-in-recovery",
            dying(rotate_directory, "rename", 4, durability="process"),
            without_sync(begin_process),
            dying(s.new_tree, "rename", 3, durability="process"),
            to_aborting,
            without_sync(begin_process),
        ),
        case("few-syncs", commit(write("a", "dir/one")), syncs_of(write("a", "dir/one"), 3, 5)),
        case("few-syncs-new-directory", commit(write("dir/one")), syncs_of(write("dir/x/y"), 2, 8)),
        Scenario("first-commit-below", s.then(never_used, directory("dir")), [commit(write("dir/x"))]),
        case(
            "undo-beside-theirs",
            meddled_commit(WRITES, 3, s.then(replaced("/sim/a"), overwrite("/sim/e")), "left as it is: 'a'"),
            shows(a="other", b="old b", e="other"),
            nothing_left,
        ),
        case(
            "undo-beside-their-new-file",
            meddled_commit(write("A", "b", "e"), 3, s.then(replaced("/sim/A"), overwrite("/sim/e"))),
            shows(A="other", b="old b", e="other"),
            nothing_left,
        ),
        case("undo-leaves-a-removal", undone_beside_removal, shows(a="old a", b="old b", c=None), nothing_left),
        case("undo-without-old", undone_without_old, refused(RecoveryError), shows(a="new a", b="old b")),
        case(
            "undone-then-removed",
            dying(WRITES, "rename", 5),
            to_aborting,
            lambda fs: fs.remove(private(fs, ".0.old")),
            removed("a"),
            recover_now,
            shows(a=None, b="old b", e=None),
            nothing_left,
        ),
        case(
            "copied-delete-taken-back",
            dying(s.delete_and_write, "rename", 3),
            to_aborting,
            copied,
            recover_copy,
            copy_is(a="old a", b="old b"),
        ),
        case(
            "copied-delete-of-an-empty-file",
            overwrite("/sim/b", ""),
            dying(s.delete_and_write, "rename", 3),
            to_aborting,
            copied,
            recover_copy,
            copy_is(a="old a", b=""),
        ),
        case(
            "copied-delete-written-to",
            dying(s.delete_and_write, "rename", 3),
            damage(".1", content="old b, and more"),
            to_aborting,
            copied,
            recover_copy,
            copy_is(a="old a", b="old b, and more"),
        ),
        case(
            "copied-delete-to-do",
            dying(s.delete_two, "rename", 2),
            copied,
            recover_copy,
            lambda fs: s.gone(fs, "/copy/a", "/copy/b"),
        ),
        case(
            "copied-delete-with-a-damaged-marker",
            dying(s.delete_two, "rename", 2),
            first_version,
            damage(".1", content="\0"),
            copied,
            recover_copy,
            lambda fs: s.gone(fs, "/copy/a", "/copy/b"),
        ),
        case(
            "copied-delete-foreign", dying(s.delete_two, "rename", 2), copied, replaced("/copy/b"), s.conflict_in_copy
        ),
        case("undo-twice", undo_interrupted, shows(a="old a", b="old b", e=None), nothing_left),
        case("undo-of-an-emptied-file", undone_beside_emptied, shows(a="old a", b=""), nothing_left),
        case(
            "rolled-back-without-token",
            dying(WRITES, "rename", 4),
            damage(".2", content="other"),
            refused(RecoveryError),
            keep_theirs_is_refused,
            decided("roll-back"),
            shows(a="old a", b="old b", e=None),
            nothing_left,
        ),
        case("theirs-before-mkdir", beside_mkdir(0o750), entry("x", "dir", 0o750), shows(z="new", **{"x/y": "new"})),
        case(
            "theirs-before-mkdir-private",
            beside_mkdir(0o1700, "secret"),
            entry("x", "dir", 0o700),
            shows(z="new", **{"x/y": "new", "x/secret": "other"}),
        ),
        case(
            "theirs-before-mkdir-same-name",
            meddled_commit(s.new_tree, 1, s.then(lambda fs: fs.mkdirs("/sim/x", mode=0o1700), overwrite("/sim/x/y"))),
            entry("x", "dir", 0o700),
            shows(z=None, **{"x/y": "other"}),
        ),
        Scenario(
            "home-round-fails",
            s.then(never_used, s.failing(write("a"), "sync_file", 1, flushed=False)),
            [commit(write("a"))],
        ),
        Scenario(
            "half-made-root",
            d.half_made_root,
            [d.in_new_root],
            recover=d.recover_new_root,
            check=d.whole_new_root,
        ),
        Scenario(
            "copied-root",
            d.copied_root,
            [d.in_new_root],
            recover=d.recover_copied_root,
            check=d.whole_copied_root,
        ),
        case(
            "format-lost", dying(WRITES, "rename", 3), lambda fs: fs.remove(f"{PRIVATE}/format"), refused(RecoveryError)
        ),
        case(
            "format-lost-without-head",
            dying(WRITES, "rename", 3),
            lambda fs: fs.remove(f"{PRIVATE}/format"),
            lambda fs: fs.remove(f"{PRIVATE}/HEAD"),
            refused(RecoveryError),
        ),
    ]
}
