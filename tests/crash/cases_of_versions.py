"""Cases: journals of the first version, and what others did in the boot of the crash or after it."""

from __future__ import annotations

from functools import partial

from tests.crash import case_steps as d
from tests.crash import steps as s
from tests.crash import steps_of_versions as v
from tests.crash.steps import WRITES, case, dying, keep_theirs, refused, shows, to_aborting, to_intent
from tests.crash.steps_of_syncs import recover_now
from txfiles.errors import RecoveryConflictError

_ONE_OF_TWO = dying(s.delete_two, "rename", 3)

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
        case(
            "new-file-removed-before-undo",
            dying(WRITES, "rename", 5),
            d.removed("b"),
            to_aborting,
            refused(RecoveryConflictError),
            keep_theirs,
            shows(a="old a", b=None, e=None),
        ),
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
