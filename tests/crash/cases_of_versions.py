"""Cases: journals of the first version, and what others did in the boot of the crash or after it."""

from __future__ import annotations

from functools import partial

from tests.crash import case_steps as d
from tests.crash import steps as s
from tests.crash import steps_of_versions as v
from tests.crash.steps import WRITES, case, dying, keep_theirs, refused, replaced, shows, to_aborting, to_intent
from tests.crash.steps_of_syncs import recover_now
from tests.crash.test_simfs_engine import rotate_directory, write
from txfiles.errors import RecoveryConflictError

_ONE_OF_TWO = dying(s.delete_two, "rename", 3)

_ATTRIBUTE = (("user.k", b"v"),)

CASES = {
    scenario.name: scenario
    for scenario in [
        case("first-version", _ONE_OF_TWO, v.first_version, recover_now, shows(a=None, b=None), d.nothing_left),
        case(
            "first-version-without-markers",
            _ONE_OF_TWO,
            v.first_version,
            v.without_markers,
            recover_now,
            shows(a=None, b=None),
        ),
        case(
            "first-version-undone", _ONE_OF_TWO, v.first_version, to_aborting, recover_now, shows(a="old a", b="old b")
        ),
        case(
            "first-version-of-an-intent",
            dying(s.delete_two, "rename", 2),
            to_intent,
            v.first_version,
            recover_now,
            shows(a="old a", b="old b"),
        ),
        case(
            "first-version-marker-with-the-number",
            dying(s.delete_two, "rename", 3),
            v.first_version,
            partial(v.marker_with_the_number_of, "/sim/b"),
            to_aborting,
            recover_now,
            shows(a="old a", b=None),
        ),
        case(
            "first-version-of-an-empty-file",
            lambda fs: fs.put("/sim/empty", ""),
            dying(d.delete_empty, "rename", 4),
            v.first_version,
            to_aborting,
            recover_now,
            shows(a="old a", empty=""),
        ),
        case(
            "first-version-deleted-but-open",
            dying(s.delete_and_write, "rename", 3),
            v.first_version,
            to_intent,
            lambda fs: fs.put(s.private(fs, ".1"), "old b and more"),
            recover_now,
            shows(a="new a", b=None),
        ),
        case(
            "name-and-parent-lost",
            dying(d.replace_in_directory, "rename", 2),
            d.removed("gone/f", "gone"),
            to_aborting,
            d.restart,
            refused(RecoveryConflictError),
        ),
        case(
            "directory-made-anew",
            dying(rotate_directory, "rename", 4),
            lambda fs: fs.mkdirs("/sim/gone"),
            refused(RecoveryConflictError),
        ),
        case(
            "first-version-of-a-directory",
            dying(s.new_tree, "mkdir", 1),
            lambda fs: fs.mkdirs("/sim/x", mode=0o700),
            v.first_version,
            recover_now,
            d.entry("x", "dir", 0o755),
            shows(z="new"),
        ),
        case(
            "copied-with-another-owner",
            dying(WRITES, "rename", 3),
            s.copied,
            v.other_meta("../copy/b", uid=9),
            s.recover_copy,
            s.copy_is(a="new a", b="new b", e="new e"),
        ),
        case(
            "first-version-with-another-owner",
            s.twins,
            dying(s.other_owner, "rename", 2),
            v.first_version,
            recover_now,
            shows(twin=None, a="old a", b="new b"),
            v.has_meta("a", 0o644, 7),
        ),
        case(
            "intent-beside-theirs",
            dying(WRITES, "rename", 2),
            to_intent,
            d.restart,
            replaced("/sim/b"),
            recover_now,
            shows(a="old a", b="other", e=None),
        ),
        case(
            "old-file-removed",
            dying(WRITES, "rename", 3),
            d.removed("b"),
            refused(RecoveryConflictError),
            keep_theirs,
            shows(a="new a", b=None, e="new e"),
        ),
        case(
            "name-lost-with-the-power",
            dying(WRITES, "rename", 3),
            d.removed("b"),
            d.restart,
            recover_now,
            shows(a="new a", b="new b", e="new e"),
        ),
        case(
            "name-lost-in-an-intent",
            dying(WRITES, "rename", 2),
            d.removed("b"),
            to_intent,
            d.restart,
            recover_now,
            shows(a="old a", b="old b", e=None),
        ),
        case(
            "name-lost-before-undo",
            dying(WRITES, "rename", 3),
            d.removed("b"),
            to_aborting,
            d.restart,
            recover_now,
            shows(a="old a", b="old b", e=None),
        ),
        case(
            "removed-before-undo",
            dying(WRITES, "rename", 3),
            d.removed("b"),
            to_aborting,
            recover_now,
            shows(a="old a", b=None, e=None),
        ),
        *(
            case(
                f"{name}-since-the-crash",
                dying(write("a", "b", "special"), "rename", 3),
                change,
                refused(RecoveryConflictError),
                keep_theirs,
                shows(a="new a", special="s"),
                stays,
            )
            for name, change, stays in (
                ("mode", v.other_meta("special", mode=0o600), v.has_meta("special", 0o600, 7, 8, _ATTRIBUTE)),
                ("owner", v.other_meta("special", uid=9), v.has_meta("special", 0o640, 9, 8, _ATTRIBUTE)),
                ("group", v.other_meta("special", gid=9), v.has_meta("special", 0o640, 7, 9, _ATTRIBUTE)),
                ("no-attribute", v.other_meta("special", xattrs={}), v.has_meta("special", 0o640, 7, 8)),
            )
        ),
        case(
            "mode-since-the-crash-and-told",
            dying(WRITES, "rename", 3),
            v.other_meta("b", mode=0o600),
            d.decided("roll-forward"),
            shows(a="new a", b="new b", e="new e"),
            v.has_meta("b", 0o644),
        ),
        case(
            "mode-of-a-new-file-in-undo",
            dying(WRITES, "rename", 5),
            v.other_meta("b", mode=0o600),
            to_aborting,
            refused(RecoveryConflictError),
            keep_theirs,
            shows(a="old a", b="new b", e=None),
            v.has_meta("b", 0o600),
        ),
        case(
            "mode-while-staged",
            v.written_meanwhile(s.then(v.other_meta("a", mode=0o600), v.other_meta("special", uid=9, xattrs={}))),
            shows(a="new a", special="new s", c="new b"),
            v.has_meta("a", 0o600),
            v.has_meta("special", 0o640, 9, 8),
            v.has_meta("c", 0o644),
        ),
        case(
            "owner-while-staged-with-a-mode",
            v.written_meanwhile(v.other_meta("a", mode=0o600, uid=9), 0o604),
            v.has_meta("a", 0o604, 9),
            v.has_meta("special", 0o604, 7, 8, _ATTRIBUTE),
        ),
        case(
            "closed-directory-of-others",
            dying(s.new_tree, "mkdir", 1),
            lambda fs: fs.mkdirs("/sim/x", mode=0o700),
            recover_now,
            d.entry("x", "dir", 0o700),
            shows(z="new"),
        ),
        case(
            "closed-directory-before-restart",
            dying(s.new_tree, "mkdir", 1),
            lambda fs: fs.mkdirs("/sim/x", mode=0o700),
            d.restart,
            recover_now,
            d.entry("x", "dir", 0o700),
            shows(z="new"),
        ),
        case("undone-beside-a-removed", v.undone_beside_a_removed, shows(a="old a", b=None, e=None), d.nothing_left),
        case(
            "directories-of-an-intent",
            dying(s.move_directory, "rename", 1),
            lambda fs: fs.mkdirs("/sim/moved"),
            lambda fs: fs.mkdirs("/sim/moved/deep", mode=0o700),
            d.restart,
            recover_now,
            d.entry("moved/deep", "dir", 0o700),
        ),
        case(
            "head-lost",
            dying(WRITES, "rename", 5),
            lambda fs: fs.remove(f"{s.PRIVATE}/HEAD"),
            recover_now,
            shows(a="new a", b="new b", e="new e"),
            d.nothing_left,
        ),
    ]
}
