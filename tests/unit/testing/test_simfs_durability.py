"""What a power loss may leave of a simulated disk: one test for each rule, over every state that survives."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from txfiles.testing import Options, SimFS

Files = dict[str, bytes]


@pytest.fixture
def fs() -> SimFS:
    return SimFS()


def files(fs: SimFS) -> Files:
    return {path: entry.content for path, entry in fs.tree("/sim").items() if entry.kind != "dir"}


def survivors(fs: SimFS, cap: int = 10_000) -> list[Files]:
    """Every different state, none twice."""
    found: list[Files] = []
    for token, state in fs.surviving_states(cap):
        assert files(fs.survive(token)) == files(state)
        if files(state) not in found:
            found.append(files(state))
    return found


def same(found: list[Files], *expected: Files) -> bool:
    return sorted(map(sorted_items, found)) == sorted(map(sorted_items, expected))


def sorted_items(one: Files) -> list[tuple[str, bytes]]:
    return sorted(one.items())


def opened(fs: SimFS, path: bytes) -> int:
    return fs.open_dir(None, path)


def rename(fs: SimFS, old: bytes, new: bytes) -> None:
    """By absolute paths, for short."""
    root = opened(fs, b"/")
    fs.rename(root, old[1:], root, new[1:])
    fs.close(root)


def sync_dir(fs: SimFS, path: bytes) -> None:
    fd = opened(fs, path)
    fs.sync_dir(fd)
    fs.close(fd)


def sync_file(fs: SimFS, path: bytes) -> None:
    fd = fs.open_read(opened(fs, b"/"), path[1:])
    fs.sync_file(fd)
    fs.close(fd)


def failing(fs: SimFS, sync: Callable[[SimFS, bytes], None], path: bytes, error: int = errno.EIO) -> None:
    """A sync that reports an error."""

    def plan(_: int, name: str) -> None:
        if name.startswith("sync"):
            raise OSError(error, "injected")

    fs.plan = plan
    with pytest.raises(OSError, match="injected"):
        sync(fs, path)
    fs.plan = None


# D1: changes of names survive in any subset until their directory is synced.


def test_every_subset_of_new_names(fs: SimFS) -> None:
    for name in "ab":
        fs.put(f"/sim/{name}", "", synced=False)
    assert same(survivors(fs), {}, {"a": b""}, {"b": b""}, {"a": b"", "b": b""})


def test_every_subset_of_removed_names(fs: SimFS) -> None:
    for name in "ab":
        fs.put(f"/sim/{name}", name)
    fs.remove("/sim/a", synced=False)
    fs.remove("/sim/b", synced=False)
    assert same(survivors(fs), {}, {"a": b"a"}, {"b": b"b"}, {"a": b"a", "b": b"b"})


def test_a_name_shows_any_of_what_it_led_to(fs: SimFS) -> None:
    for text in ("one", "two", "three"):
        fs.put(f"/sim/{text}", text)
    for text in ("one", "two", "three"):
        fs.put_link("/sim/a", f"/sim/{text}", synced=False)
        if text != "three":
            fs.remove("/sim/a", synced=False)
    assert {state.get("a") for state in survivors(fs)} == {None, b"one", b"two", b"three"}


def test_what_is_synced_survives_for_certain(fs: SimFS) -> None:
    fs.put("/sim/a", "x", synced=False)
    sync_file(fs, b"/sim/a")
    assert same(survivors(fs), {}, {"a": b"x"})
    sync_dir(fs, b"/sim")
    assert survivors(fs) == [{"a": b"x"}]


def test_syncing_a_file_does_not_sync_its_name_nor_the_other_way_round(fs: SimFS) -> None:
    fs.put("/sim/a", "x", synced=False)
    sync_dir(fs, b"/sim")
    assert {"a": b""} in survivors(fs)
    assert all("a" in state for state in survivors(fs))


def test_syncing_a_directory_leaves_those_above_and_below_alone(fs: SimFS) -> None:
    fs.mkdirs("/sim/d/e")
    for path in ("/sim/x", "/sim/d/x", "/sim/d/e/x"):
        fs.put(path, "", synced=False)
    sync_dir(fs, b"/sim/d")
    found = survivors(fs)
    assert all("d/x" in state for state in found)
    assert same(found, *({"d/x": b"", **x, **y} for x in ({}, {"x": b""}) for y in ({}, {"d/e/x": b""})))


def test_a_file_lives_as_long_as_any_name_survives(fs: SimFS) -> None:
    fs.put("/sim/a", "x")
    fs.put_link("/sim/b", "/sim/a", synced=False)
    fs.remove("/sim/a", synced=False)
    assert same(survivors(fs), {"a": b"x"}, {"b": b"x"}, {"a": b"x", "b": b"x"}, {})
    both = [state for _, state in fs.surviving_states(99) if state.exists("/sim/a") and state.exists("/sim/b")]
    at = opened(both[0], b"/sim")
    assert both[0].stat(at, b"a").st_nlink == 2


def test_a_symlink_comes_back_whole_or_not_at_all(fs: SimFS) -> None:
    fs.put_symlink("/sim/l", "text", synced=False)
    assert same(survivors(fs), {}, {"l": b"text"})


# D2, D3: renames.


def test_a_rename_within_a_directory_happened_or_not_or_left_both_names(fs: SimFS) -> None:
    fs.put("/sim/a", "x")
    rename(fs, b"/sim/a", b"/sim/b")
    assert same(survivors(fs), {"a": b"x"}, {"b": b"x"}, {"a": b"x", "b": b"x"})
    sync_dir(fs, b"/sim")
    assert survivors(fs) == [{"b": b"x"}]


def test_a_replaced_target_shows_the_old_or_the_new_never_nothing(fs: SimFS) -> None:
    fs.put("/sim/a", "new")
    fs.put("/sim/b", "old")
    rename(fs, b"/sim/a", b"/sim/b")
    assert same(survivors(fs), {"a": b"new", "b": b"old"}, {"b": b"new"}, {"a": b"new", "b": b"new"})


def two_directories(fs: SimFS) -> None:
    fs.mkdirs("/sim/from")
    fs.mkdirs("/sim/to")
    fs.put("/sim/from/a", "x")
    rename(fs, b"/sim/from/a", b"/sim/to/b")


def test_a_rename_between_directories_is_pending_until_both_are_synced(fs: SimFS) -> None:
    not_yet, both, done = {"from/a": b"x"}, {"from/a": b"x", "to/b": b"x"}, {"to/b": b"x"}
    two_directories(fs)
    assert same(survivors(fs), not_yet, both, done)
    kept = fs.after_kill()
    sync_dir(fs, b"/sim/from")  # the one it came from: still open whether it happened
    assert same(survivors(fs), not_yet, both, done)
    sync_dir(fs, b"/sim/to")
    assert survivors(fs) == [done]
    sync_dir(kept, b"/sim/to")
    assert same(survivors(kept), both, done)
    sync_dir(kept, b"/sim/from")
    assert survivors(kept) == [done]


def test_what_takes_the_old_name_durably_makes_the_rename_durable(fs: SimFS) -> None:
    two_directories(fs)
    fs.put("/sim/from/a", "another")  # synced, with its directory
    assert survivors(fs) == [{"from/a": b"another", "to/b": b"x"}]


def test_a_chain_of_renames_never_loses_the_file(fs: SimFS) -> None:
    for name in ("one", "two", "three"):
        fs.mkdirs(f"/sim/{name}")
    fs.put("/sim/one/f", "x")
    rename(fs, b"/sim/one/f", b"/sim/two/f")
    rename(fs, b"/sim/two/f", b"/sim/three/f")
    assert {"one/f": b"x"} in survivors(fs)
    sync_dir(fs, b"/sim/one")
    assert {"one/f": b"x"} in survivors(fs)
    assert all(b"x" in state.values() for state in survivors(fs))
    sync_dir(fs, b"/sim/two")  # that it came here is durable now, not that it left
    assert same(survivors(fs), {"two/f": b"x"}, {"two/f": b"x", "three/f": b"x"}, {"three/f": b"x"})
    sync_dir(fs, b"/sim/three")
    assert survivors(fs) == [{"three/f": b"x"}]


def test_a_chain_in_one_directory_is_durable_after_one_sync(fs: SimFS) -> None:
    fs.put("/sim/a", "a")
    fs.put("/sim/b", "b")
    for old, new in ((b"a", b"t"), (b"b", b"a"), (b"t", b"b")):
        rename(fs, b"/sim/" + old, b"/sim/" + new)
        assert all({b"a", b"b"} <= set(state.values()) for state in survivors(fs))
    sync_dir(fs, b"/sim")
    assert survivors(fs) == [{"a": b"b", "b": b"a"}]


def test_a_file_moved_away_and_back_may_never_have_left(fs: SimFS) -> None:
    two_directories(fs)
    rename(fs, b"/sim/to/b", b"/sim/from/a")
    assert all(b"x" in state.values() for state in survivors(fs))
    assert {"from/a": b"x"} in survivors(fs)


def test_a_later_change_of_the_target_counts_as_the_rename_having_happened(fs: SimFS) -> None:
    two_directories(fs)
    fs.remove("/sim/to/b", synced=False)
    found = survivors(fs)
    assert {} in found
    assert {"from/a": b"x"} in found
    sync_dir(fs, b"/sim/to")
    assert same(survivors(fs), {}, {"from/a": b"x"})


def test_an_overwritten_rename_does_not_bring_the_file_back(fs: SimFS) -> None:
    fs.put("/sim/token", "new")
    fs.put("/sim/target", "old")
    rename(fs, b"/sim/token", b"/sim/target")
    fs.put("/sim/again", "newer")
    rename(fs, b"/sim/again", b"/sim/target")
    sync_dir(fs, b"/sim")
    assert survivors(fs) == [{"target": b"newer"}]


def test_a_rename_between_two_names_of_one_file_does_nothing(fs: SimFS) -> None:
    fs.put("/sim/a", "x")
    fs.put_link("/sim/b", "/sim/a")
    rename(fs, b"/sim/a", b"/sim/b")
    assert survivors(fs) == [{"a": b"x", "b": b"x"}]


def test_a_directory_has_one_name(fs: SimFS) -> None:
    fs.mkdirs("/sim/d")
    fs.mkdirs("/sim/to")
    fs.put("/sim/d/f", "x")
    rename(fs, b"/sim/d", b"/sim/to/e")
    assert same(survivors(fs), {"d/f": b"x"}, {"to/e/f": b"x"})


# D4: directories.


def test_a_lost_directory_takes_everything_with_it(fs: SimFS) -> None:
    fs.put("/sim/a", "x")
    fs.mkdirs("/sim/new", synced=False)
    rename(fs, b"/sim/a", b"/sim/new/a")
    sync_dir(fs, b"/sim/new")
    found = survivors(fs)
    assert {} in found
    sync_dir(fs, b"/sim")
    assert survivors(fs) == [{"new/a": b"x"}]


def test_a_removed_directory_loses_what_was_not_durably_moved_out(fs: SimFS) -> None:
    fs.mkdirs("/sim/d")
    fs.put("/sim/d/a", "x")
    rename(fs, b"/sim/d/a", b"/sim/a")
    fs.remove("/sim/d", synced=False)
    assert {} in survivors(fs)
    sync_dir(fs, b"/sim")
    assert survivors(fs) == [{"a": b"x"}]


def test_a_removal_of_a_directory_that_is_lost_brings_it_back_with_what_it_had(fs: SimFS) -> None:
    fs.mkdirs("/sim/d")
    fs.put("/sim/d/a", "x")
    fs.remove("/sim/d/a", synced=False)
    fs.remove("/sim/d", synced=False)
    states = [state.tree("/sim") for _, state in fs.surviving_states(99)]
    assert {frozenset(tree) for tree in states} == {frozenset(), frozenset({"d"}), frozenset({"d", "d/a"})}


# D5: content and metadata.


def test_new_content_comes_back_in_every_bad_way(fs: SimFS) -> None:
    fs.put("/sim/a", "", synced=True)
    fs.put("/sim/a", "12345678", synced=False)
    found = {state["a"] for state in survivors(fs)}
    garbage = bytes(255 - byte for byte in b"12345678")
    assert found == {b"", b"12345678", b"1234", b"1234567", bytes(8), b"1234" + bytes(4), garbage}


def test_overwritten_content_comes_back_old_or_torn(fs: SimFS) -> None:
    fs.put("/sim/a", "oldoldol")
    fs.put("/sim/a", "NEWNEWNE", synced=False)
    found = {state["a"] for state in survivors(fs)}
    assert {b"oldoldol", b"NEWNEWNE", b"NEWNldol", bytes(8)} <= found


def test_what_was_synced_before_an_append_is_intact(fs: SimFS) -> None:
    fs.put("/sim/a", "durable")
    fd = fs.open_append(opened(fs, b"/sim"), b"a")
    fs.write(fd, b"more")
    found = {state["a"] for state in survivors(fs)}
    assert all(content.startswith(b"durable") for content in found)
    assert {b"durable", b"durablemore", b"durablemo", b"durable" + bytes(4)} <= found
    fs.sync_file(fd)
    assert survivors(fs) == [{"a": b"durablemore"}]


def test_bytes_in_the_middle_are_lost_alone(fs: SimFS) -> None:
    fd = fs.create(opened(fs, b"/sim"), b"a")
    fs.write(fd, b"aaaabbbbcccc")
    fs.sync_file(fd)
    sync_dir(fs, b"/sim")
    fs.seek(fd, 4, 0)
    fs.write(fd, b"BBBB")
    found = {state["a"] for state in survivors(fs)}
    assert all(content[:4] == b"aaaa" and content[8:] == b"cccc" for content in found)
    assert {content[4:8] for content in found} >= {b"bbbb", b"BBBB", bytes(4), b"BBbb"}


def test_bytes_at_two_places_are_lost_and_kept_alone_and_what_is_between_is_intact(fs: SimFS) -> None:
    fd = fs.create(opened(fs, b"/sim"), b"a")
    fs.write(fd, b"aaaabbbbccccdddd")
    fs.sync_file(fd)
    sync_dir(fs, b"/sim")
    for at in (8, 0):
        fs.write_at(fd, b"NEW!", at)
    found = {state["a"] for state in survivors(fs)}
    assert {content[4:8] + content[12:] for content in found} == {b"bbbbdddd"}
    pairs = {(content[:4], content[8:12]) for content in found}
    assert pairs >= {
        (b"aaaa", b"cccc"),
        (b"NEW!", b"cccc"),
        (b"aaaa", b"NEW!"),
        (b"NEW!", b"NEW!"),
        (bytes(4), bytes(4)),
    }
    fs.sync_file(fd)
    assert survivors(fs) == [{"a": b"NEW!bbbbNEW!dddd"}]


def test_metadata_is_old_or_new_each_for_itself(fs: SimFS) -> None:
    fs.put("/sim/a", "x", mode=0o600)
    fd = fs.open_read(opened(fs, b"/sim"), b"a")
    fs.chmod(fd, 0o644)
    fs.chown(fd, 7, 8)
    fs.set_xattr(fd, "user.k", b"v")
    fs.set_mtime(fd, 5)
    seen = set()
    for _, state in fs.surviving_states(99):
        entry = state.tree("/sim")["a"]
        mtime = state.stat(opened(state, b"/sim"), b"a").st_mtime_ns
        seen.add((entry.mode, entry.uid, entry.gid, bool(entry.xattrs), mtime == 5))
    owners = [(0o600, 0, 0), (0o644, 7, 8)]
    assert seen == {(*owner, xattr, mtime) for owner in owners for xattr in (False, True) for mtime in (False, True)}
    fs.sync_file(fd)
    assert len(list(fs.surviving_states(99))) == 1


def test_metadata_of_a_directory_is_synced_with_it(fs: SimFS) -> None:
    fs.mkdirs("/sim/d", mode=0o700)
    fd = opened(fs, b"/sim/d")
    fs.chmod(fd, 0o755)
    assert {state.tree("/sim")["d"].mode for _, state in fs.surviving_states(9)} == {0o700, 0o755}
    fs.sync_dir(fd)
    assert {state.tree("/sim")["d"].mode for _, state in fs.surviving_states(9)} == {0o755}


def test_a_new_file_may_come_back_with_the_mode_it_was_made_with(fs: SimFS) -> None:
    fd = fs.create(opened(fs, b"/sim"), b"a", 0o600)
    fs.chmod(fd, 0o644)
    sync_dir(fs, b"/sim")
    assert {state.tree("/sim")["a"].mode for _, state in fs.surviving_states(9)} == {0o600, 0o644}


# D6: syncs that fail.


def test_content_of_a_failed_sync_stays_in_doubt(fs: SimFS) -> None:
    fs.put("/sim/a", "old!")
    fs.put("/sim/a", "new!", synced=False)
    failing(fs, sync_file, b"/sim/a")
    assert fs.get("/sim/a") == b"new!"
    sync_file(fs, b"/sim/a")
    assert {b"old!", b"new!", bytes(4)} <= {state["a"] for state in survivors(fs)}
    fs.put("/sim/a", "newer", synced=True)
    assert survivors(fs) == [{"a": b"newer"}]


def test_what_is_written_after_a_failed_sync_can_be_synced(fs: SimFS) -> None:
    fs.put("/sim/a", "old!")
    fd = fs.open_append(opened(fs, b"/sim"), b"a")
    fs.write(fd, b"lost")
    failing(fs, sync_file, b"/sim/a")
    fs.write(fd, b"kept")
    fs.sync_file(fd)
    found = {state["a"] for state in survivors(fs)}
    assert all(content.startswith(b"old!") and content.endswith(b"kept") for content in found)
    assert {content[4:8] for content in found} >= {b"lost", bytes(4)}


@pytest.mark.parametrize(("at", "rest"), [(0, slice(4, 8)), (4, slice(0, 4))])
def test_a_part_that_is_written_again_after_a_failed_sync_can_be_synced(fs: SimFS, at: int, rest: slice) -> None:
    fs.put("/sim/a", "old!old!")
    fs.put("/sim/a", "new!new!", synced=False)
    failing(fs, sync_file, b"/sim/a")
    fd = fs.open_write(opened(fs, b"/sim"), b"a")
    fs.write_at(fd, b"new!", at)
    fs.sync_file(fd)
    found = {state["a"] for state in survivors(fs)}
    assert all(content[at : at + 4] == b"new!" for content in found)
    assert {content[rest] for content in found} >= {b"old!", b"new!", bytes(4)}


def test_metadata_of_a_failed_sync_stays_in_doubt(fs: SimFS) -> None:
    fs.put("/sim/a", "x", mode=0o600)
    fd = fs.open_read(opened(fs, b"/sim"), b"a")
    fs.chmod(fd, 0o644)
    failing(fs, sync_file, b"/sim/a")
    fs.sync_file(fd)
    assert {state.tree("/sim")["a"].mode for _, state in fs.surviving_states(9)} == {0o600, 0o644}
    fs.chmod(fd, 0o640)
    fs.sync_file(fd)
    assert {state.tree("/sim")["a"].mode for _, state in fs.surviving_states(9)} == {0o640}


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_names_of_a_failed_sync_stay_in_doubt_each_for_itself(fs: SimFS, error: int) -> None:
    for name in "ab":
        fs.put(f"/sim/{name}", "", synced=False)
    failing(fs, sync_dir, b"/sim", error)
    fs.put("/sim/c", "")  # and its directory is synced
    assert files(fs) == {"a": b"", "b": b"", "c": b""}
    assert same(survivors(fs), *({"c": b"", **a, **b} for a in ({}, {"a": b""}) for b in ({}, {"b": b""})))
    fs.remove("/sim/a")
    assert same(survivors(fs), {"c": b""}, {"b": b"", "c": b""})


def test_a_sync_that_is_refused_or_interrupted_loses_nothing(fs: SimFS) -> None:
    fs.put("/sim/a", "x", synced=False)
    for error in (errno.EINTR, errno.EINVAL):
        failing(fs, sync_dir, b"/sim", error)
        failing(fs, sync_file, b"/sim/a", error)
    sync_dir(fs, b"/sim")
    sync_file(fs, b"/sim/a")
    assert survivors(fs) == [{"a": b"x"}]


def test_a_rename_whose_sync_failed_may_be_lost_even_after_another(fs: SimFS) -> None:
    two_directories(fs)
    failing(fs, sync_dir, b"/sim/to")
    sync_dir(fs, b"/sim/to")
    sync_dir(fs, b"/sim/from")
    assert same(survivors(fs), {"from/a": b"x"}, {"from/a": b"x", "to/b": b"x"}, {"to/b": b"x"})


def test_a_restart_ends_all_doubt(fs: SimFS) -> None:
    fs.put("/sim/a", "x", synced=False)
    failing(fs, sync_dir, b"/sim")
    for _, state in fs.surviving_states(99):
        assert survivors(state) == [files(state)]


# What a crash leaves besides.


def test_a_process_kill_leaves_everything_and_forgets_nothing(fs: SimFS) -> None:
    fs.put("/sim/a", "x", synced=False)
    opened(fs, b"/sim")
    killed = fs.after_kill()
    assert (killed.boot_id(), killed.open_files) == (fs.boot_id(), [])
    assert files(killed) == {"a": b"x"}
    assert same(survivors(killed), *survivors(fs))


def test_a_power_loss_is_another_boot(fs: SimFS) -> None:
    boots = {fs.boot_id(), *(state.boot_id() for _, state in fs.surviving_states(9))}
    assert len(boots) == 2
    assert fs.survive("kill").boot_id() == fs.boot_id()
    assert fs.after_kill().pid() != fs.pid()


def test_states_do_not_share_what_changes(fs: SimFS) -> None:
    fs.put("/sim/a", "x")
    fs.put("/sim/b", "x", synced=False)
    states = [state for _, state in fs.surviving_states(99)]
    before = [files(state) for state in states]
    fs.put("/sim/a", "y")
    fs.remove("/sim/b")
    assert [files(state) for state in states] == before
    states[0].put("/sim/a", "z")
    assert files(states[1]) == before[1]
    assert files(fs) == {"a": b"y"}


def test_an_unlinked_file_is_gone_with_the_process_that_had_it_open(fs: SimFS) -> None:
    fs.put("/sim/a", "x")
    at = opened(fs, b"/sim")
    fd = fs.open_read(at, b"a")
    number = fs.fstat(fd).st_ino
    fs.unlink(at, b"a")
    fs.put("/sim/b", "y")
    assert fs.read(fd, 9) == b"x"
    assert fs.stat(at, b"b").st_ino != number
    killed = fs.after_kill()
    killed.put("/sim/c", "z")
    assert killed.stat(opened(killed, b"/sim"), b"c").st_ino == number


# Inode numbers.


def test_the_lowest_free_inode_number_is_used_again(fs: SimFS) -> None:
    at = opened(fs, b"/sim")
    for name in "abc":
        fs.put(f"/sim/{name}", "")
    numbers = [fs.stat(at, name).st_ino for name in (b"a", b"b", b"c")]
    fs.remove("/sim/b")
    fs.remove("/sim/a")
    fs.put("/sim/d", "")
    fs.put("/sim/e", "")
    assert [fs.stat(at, name).st_ino for name in (b"d", b"e")] == sorted(numbers[:2])


def test_inode_numbers_can_be_used_once_only() -> None:
    fs = SimFS(Options(reuse_inodes=False))
    seen = set()
    for _ in range(3):
        fs.put("/sim/a", "")
        seen.add(fs.stat(opened(fs, b"/sim"), b"a").st_ino)
        fs.remove("/sim/a")
        fs = next(state for _, state in fs.surviving_states(1))
    assert len(seen) == 3


def test_no_state_has_two_files_with_one_number(fs: SimFS) -> None:
    fs.put("/sim/a", "a")
    fs.remove("/sim/a", synced=False)
    fs.put("/sim/b", "", synced=False)  # has the number of a
    assert same(survivors(fs), {"a": b"a"}, {}, {"b": b""})


# Choosing among many states.


def many(fs: SimFS) -> None:
    for number in range(12):
        fs.put(f"/sim/{number}", "x", synced=False)


def test_a_cap_keeps_the_extremes_and_is_kept(fs: SimFS) -> None:
    many(fs)
    found = [state for _, state in fs.surviving_states(50)]
    assert len(found) == 50
    assert {} in map(files, found)
    assert files(fs) in map(files, found)
    assert len({state.fingerprint() for state in found}) == 50


def test_each_single_change_is_lost_and_kept_alone(fs: SimFS) -> None:
    for number in range(12):
        fs.put(f"/sim/{number}", "", synced=False)
    found = survivors(fs, cap=200)
    for number in range(12):
        rest = {name: b"" for name in files(fs) if name != str(number)}
        assert rest in found
        assert {str(number): b""} in found


def test_the_same_seed_gives_the_same_states(fs: SimFS) -> None:
    many(fs)
    tokens = [[token for token, _ in fs.surviving_states(40, seed)] for seed in (1, 1, 2)]
    assert tokens[0] == tokens[1] != tokens[2]


def test_samples_keep_the_rules(fs: SimFS) -> None:
    fs.mkdirs("/sim/from")
    fs.mkdirs("/sim/to")
    for number in range(12):
        fs.put(f"/sim/from/{number}", str(number))
    for number in range(12):
        rename(fs, b"/sim/from/%d" % number, b"/sim/to/%d" % number)
    for state in survivors(fs, cap=300):
        assert set(state.values()) == {b"%d" % number for number in range(12)}


def test_a_state_without_anything_open_has_a_token(fs: SimFS) -> None:
    ((token, _),) = fs.surviving_states(5)
    assert token == "-"
    assert files(fs.survive(token)) == {}
    assert fs.describe(token) == []


@pytest.mark.parametrize("token", ["1", "19", "111", "-"])
def test_a_token_that_does_not_fit_is_refused(fs: SimFS, token: str) -> None:
    for name in "ab":
        fs.put(f"/sim/{name}", "", synced=False)
    with pytest.raises(ValueError, match="no power loss"):
        fs.survive(token)


def test_a_token_says_what_it_means(fs: SimFS) -> None:
    fs.put("/sim/a", "x", synced=False)
    told = fs.describe("110")
    assert told == [
        "/sim/a: 1 of 1 changes survive",
        "content of /sim/a: zeroed",
        "metadata of /sim/a: mtime lost",
    ]


def test_long_histories_have_tokens_too(fs: SimFS) -> None:
    for _ in range(30):
        fs.put("/sim/a", "", synced=False)
        fs.remove("/sim/a", synced=False)
    tokens = [token for token, _ in fs.surviving_states(100)]
    assert max(tokens, key=len).count(".") == 0  # one thing is open
    fs.put("/sim/b", "", synced=False)
    assert files(fs.survive("60.1")) == {"b": b""}


def test_disks_do_not_grow_with_what_is_gone(fs: SimFS) -> None:
    for number in range(500):
        fs.put(f"/sim/{number}", "x")
        fs.remove(f"/sim/{number}")
        if number % 50 == 0:
            fs = fs.after_kill()
    assert len(fs.disk.nodes) < 200


def test_equal_disks_have_equal_fingerprints(fs: SimFS) -> None:
    fs.put("/sim/a", "x")
    fs.put("/sim/b", "y", synced=False)
    assert fs.after_kill().fingerprint() == fs.fingerprint()
    prints = {state.fingerprint() for _, state in fs.surviving_states(99)}
    assert fs.fingerprint() not in prints  # there, something is still pending
    fs.sync_everything()
    assert fs.fingerprint() in prints


def test_what_only_a_power_loss_can_bring_back_makes_a_difference(fs: SimFS) -> None:
    prints = set()
    for content in ("one", "two"):
        fs.put("/sim/a", content)
        then = fs.after_kill()
        then.remove("/sim/a", synced=False)
        prints.add(then.fingerprint())
    assert len(prints) == 2


# -- exchange, fdatasync, sessions ----------------------------------------------------------------------------------


def test_an_exchange_is_whole_or_not_at_all_until_both_directories_are_synced(fs: SimFS) -> None:
    fs.mkdirs("/sim/from")
    fs.mkdirs("/sim/to")
    fs.put("/sim/from/a", "new")
    fs.put("/sim/to/b", "old")
    root = opened(fs, b"/sim")
    fs.exchange(root, b"from/a", root, b"to/b")
    before, after = {"from/a": b"new", "to/b": b"old"}, {"from/a": b"old", "to/b": b"new"}
    assert files(fs) == after == files(fs.after_kill())
    assert same(survivors(fs), before, after)
    for first, second in ((b"/sim/from", b"/sim/to"), (b"/sim/to", b"/sim/from")):
        one = fs.after_kill()
        sync_dir(one, first)
        assert same(survivors(one), before, after)
        sync_dir(one, second)
        assert survivors(one) == [after]


def test_an_exchange_in_one_directory_is_durable_after_one_sync(fs: SimFS) -> None:
    fs.put("/sim/a", "new")
    fs.put("/sim/b", "old")
    root = opened(fs, b"/sim")
    fs.exchange(root, b"a", root, b"b")
    assert same(survivors(fs), {"a": b"new", "b": b"old"}, {"a": b"old", "b": b"new"})
    sync_dir(fs, b"/sim")
    assert survivors(fs) == [{"a": b"old", "b": b"new"}]


def test_an_exchange_and_what_follows_it_lose_no_file(fs: SimFS) -> None:
    """As a commit does: exchange, then the old file goes."""
    fs.mkdirs("/sim/private")
    fs.put("/sim/private/token", "new")
    fs.put("/sim/target", "old")
    root = opened(fs, b"/sim")
    fs.exchange(root, b"private/token", root, b"target")
    fs.unlink(root, b"private/token")
    assert {state["target"] for state in survivors(fs)} == {b"old", b"new"}
    sync_dir(fs, b"/sim")
    assert {state["target"] for state in survivors(fs)} == {b"old", b"new"}
    sync_dir(fs, b"/sim/private")
    assert survivors(fs) == [{"target": b"new"}]


def test_exchanged_directories_take_along_what_is_in_them(fs: SimFS) -> None:
    for path in ("/sim/one/d", "/sim/two/e"):
        fs.mkdirs(path)
        fs.put(f"{path}/in", path)
    root = opened(fs, b"/sim")
    fs.exchange(root, b"one/d", root, b"two/e")
    assert files(fs) == {"one/d/in": b"/sim/two/e", "two/e/in": b"/sim/one/d"}
    assert fs.listdir(fs.open_dir(root, b"one/d/..")) == [b"d"]
    sync_dir(fs, b"/sim/one")
    sync_dir(fs, b"/sim/two")
    assert survivors(fs) == [files(fs)]


def test_content_in_place_is_durable_by_fdatasync_and_metadata_are_not(fs: SimFS) -> None:
    fs.put("/sim/a", "aaaabbbbcccc", mode=0o600)
    fd = fs.open_write(opened(fs, b"/sim"), b"a")
    fs.write_at(fd, b"BBBB", 4)
    fs.chmod(fd, 0o640)
    assert {state["a"][4:8] for state in survivors(fs)} >= {b"bbbb", b"BBBB", bytes(4), b"BBbb"}
    fs.sync_data(fd)
    assert survivors(fs) == [{"a": b"aaaaBBBBcccc"}]
    assert {fs.survive(token).tree()["a"].mode for token, _ in fs.surviving_states(100)} == {0o600, 0o640}
    fs.sync_file(fd)
    assert {fs.survive(token).tree()["a"].mode for token, _ in fs.surviving_states(100)} == {0o640}


def test_content_of_a_failed_fdatasync_stays_in_doubt(fs: SimFS) -> None:
    fs.put("/sim/a", "old")
    fd = fs.open_write(opened(fs, b"/sim"), b"a")
    fs.write_at(fd, b"new", 0)
    failing(fs, lambda fs, _: fs.sync_data(fd), b"")
    fs.sync_data(fd)
    assert {b"old", b"new"} <= {state["a"] for state in survivors(fs)}
    fs.write_at(fd, b"NEW", 0)
    fs.sync_data(fd)
    assert survivors(fs) == [{"a": b"NEW"}]


def test_a_session_ends_with_the_boot_and_with_the_mount_not_with_the_process(fs: SimFS) -> None:
    def session(fs: SimFS) -> bytes:
        return fs.session(opened(fs, b"/sim"))

    token, rebooted = next(fs.surviving_states(1))
    assert session(fs) == session(fs.after_kill())
    assert len({session(fs), session(rebooted), session(fs.pulled(token))}) == 3
    assert fs.pulled(token).boot_id() == fs.boot_id() != rebooted.boot_id()
    assert session(SimFS(Options(sessions=False))) == b""
