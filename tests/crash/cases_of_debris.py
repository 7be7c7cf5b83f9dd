"""Cases about what a crash left (G1, G5): both names of one rename, copies, what lies in the private directory."""

from __future__ import annotations

from tests.crash import steps as s
from tests.crash import steps_of_syncs as d
from tests.crash.case_steps import (
    both_names,
    copy_entry,
    damage_marker,
    delete_lost,
    edited,
    entry,
    foreign_left,
    link_over_file,
    meddled_token,
    mode_over_file,
    no_begin,
    removes,
    renamed_journal,
    replaced_by_another,
    rmdir_fails,
    twin,
    unknown_left,
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
    recover_copy,
    refused,
    shows,
    to_aborting,
    to_intent,
)
from tests.crash.steps_of_syncs import recover_now
from tests.crash.steps_of_versions import first_version
from tests.crash.test_simfs_engine import commit, write
from txfiles.errors import JournalCorruptError, JournalVersionError, RecoveryError

CASES = {
    one.name: one
    for one in [
        case(
            "both-names-then-written",
            dying(WRITES, "rename", 3),
            both_names(".1", "b"),
            overwrite("/sim/b"),
            recover_now,
            shows(a="new a", b="other", e="new e"),
        ),
        case(
            "both-names-copied",
            dying(WRITES, "rename", 3),
            both_names(".1", "b"),
            copied,
            recover_copy,
            copy_is(a="new a", b="new b", e="new e"),
        ),
        case(
            "both-names-of-an-intent",
            dying(WRITES, "rename", 2),
            both_names(".0", "a"),
            to_intent,
            recover_now,
            shows(a="new a", b="new b", e="new e"),
        ),
        case(
            "copied-new-file",
            dying(write("A", "b"), "rename", 3),
            to_intent,
            copied,
            recover_copy,
            copy_is(A="new A", b="new b"),
        ),
        case(
            "copied-mode",
            twin,
            dying(mode_over_file, "rename", 4),
            to_intent,
            copied,
            recover_copy,
            copy_entry("a", "file", 0o600),
            copy_is(b="new b"),
        ),
        case(
            "copied-link",
            dying(link_over_file, "rename", 4),
            to_intent,
            first_version,
            copied,
            recover_copy,
            copy_entry("a", "link"),
            copy_is(b="new b"),
        ),
        case(
            "copied-mode-alone",
            twin,
            dying(mode_over_file, "rename", 4),
            to_intent,
            delete_lost("twin"),
            copied,
            recover_copy,
            copy_entry("a", "file", 0o600),
            copy_is(b="new b"),
        ),
        case(
            "copied-link-alone",
            dying(link_over_file, "rename", 4),
            to_intent,
            delete_lost("link"),
            copied,
            recover_copy,
            copy_entry("a", "link"),
            copy_is(b="new b"),
        ),
        case(
            "marker-damaged",
            dying(s.delete_and_write, "rename", 2),
            first_version,
            damage_marker,
            recover_now,
            shows(a="new a", b=None),
        ),
        case(
            "marker-of-an-intent-damaged",
            dying(s.delete_and_write, "rename", 2),
            to_intent,
            first_version,
            damage_marker,
            recover_now,
            shows(a="old a", b="old b"),
        ),
        case(
            "undo-that-fails", dying(s.new_tree, "rename", 3), to_aborting, rmdir_fails, recover_now, entry("x", None)
        ),
        case("link-proves", dying(d.link_moves, "rename", 4), to_intent, recover_now, entry("other", "link")),
        case("token-owner", dying(WRITES, "rename", 3), damage(".1", uid=7), refused(RecoveryError)),
        case("token-group", dying(WRITES, "rename", 3), damage(".1", gid=7), refused(RecoveryError)),
        case("token-grown-in-a-tick", meddled_token(lambda fs, path: fs.put(path, "longer")), options=d.TICK),
        case("token-replaced-in-a-tick", meddled_token(replaced_by_another), options=d.TICK),
        case(
            "token-xattr",
            dying(write("a", "special"), "rename", 3),
            damage(".1", content="new special", xattrs={"user.k": b"w"}),
            refused(RecoveryError),
        ),
        case(
            "journal-newer",
            dying(WRITES, "rename", 3),
            edited(".committed", lambda raw: raw.replace(b"journal 2", b"journal 4", 1)),
            refused(JournalVersionError),
        ),
        case(
            "journal-zero",
            dying(WRITES, "rename", 3),
            edited(".committed", lambda raw: raw.replace(b"journal 2", b"journal 0", 1)),
            refused(JournalCorruptError),
        ),
        case(
            "journal-cut",
            dying(WRITES, "rename", 3),
            edited(".committed", lambda raw: raw[:-1]),
            refused(JournalCorruptError),
        ),
        case(
            "journal-flipped",
            dying(WRITES, "rename", 3),
            edited(".committed", lambda raw: raw.replace(b'"path":"b"', b'"path":"c"')),
            refused(JournalCorruptError),
        ),
        case("journal-of-another", dying(WRITES, "rename", 3), renamed_journal, refused(JournalCorruptError)),
        case(
            "journal-is-a-link",
            lambda fs: fs.put_symlink(f"{PRIVATE}/{'0' * 32}.committed", "HEAD"),
            unknown_left(f"{'0' * 32}.committed"),
        ),
        case("token-is-a-directory", lambda fs: fs.mkdirs(f"{PRIVATE}/{'0' * 32}.1"), unknown_left(f"{'0' * 32}.1")),
        case("no-name-of-ours", lambda fs: fs.put(f"{PRIVATE}/notes", "?"), foreign_left("notes")),
        case("loose-link", lambda fs: fs.put_symlink(f"{PRIVATE}/{'0' * 32}.1", "a"), removes(f"{'0' * 32}.1")),
        case("format-lost-at-rest", lambda fs: fs.remove(f"{PRIVATE}/format"), refused(RecoveryError), no_begin),
        case(
            "format-lost-beside-process",
            commit(write("a"), durability="process"),
            dying(WRITES, "rename", 3, durability="process"),
            lambda fs: fs.remove(f"{PRIVATE}/format"),
            recover_now,
            shows(a="new a", b="new b"),
        ),
        case(
            "format-lost-after-process",
            commit(write("a"), durability="process"),
            lambda fs: fs.remove(f"{PRIVATE}/format"),
            commit(write("b")),
            shows(a="new a", b="new b"),
        ),
        case(
            "format-newer",
            dying(WRITES, "rename", 3),
            overwrite(f"{PRIVATE}/format", "txfiles 3 flock\n"),
            refused(JournalVersionError),
        ),
    ]
}
