"""The kit for users: it lets the four-file save pass, and finds what is wrong with others."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.procs import CHECKOUT
from txfiles import FileTransaction
from txfiles._disk import system
from txfiles.testing import SimFS, survives_kills, survives_power_loss
from txfiles.testing._faults import FaultyFS
from txfiles.testing._killed import state_of

Act = Callable[[Path], object]


def _example() -> Any:
    spec = importlib.util.spec_from_file_location("context_manager", CHECKOUT / "examples" / "context_manager.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


context = _example()


def two_messages(root: Path) -> None:
    context.converse(context.ContextManager(root), 2)


def a_third(make: Callable[[Path], Any]) -> Act:
    def save(root: Path) -> None:
        manager = make(root)
        context.ContextManager.load(manager)
        context.converse(manager, 1)

    return save


def agree(root: Path) -> None:
    wrong = context.disagreement(root)
    assert wrong is None, wrong


def old(root: Path) -> None:
    (root / "sub").mkdir()
    (root / "a").write_text("old", encoding="utf-8")
    (root / "sub" / "b").write_text("old", encoding="utf-8")


def together(root: Path) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", "new")
        tx.write("sub/b", "new")


def in_two_parts(root: Path) -> None:
    for name in ("a", "sub/b"):
        with FileTransaction(root) as tx:
            tx.write(name, "new")


def in_place(root: Path) -> None:
    (root / "a").write_text("new", encoding="utf-8")


def equal(root: Path) -> bool:
    return (root / "a").read_text(encoding="utf-8") == (root / "sub" / "b").read_text(encoding="utf-8") != ""


def failure_of(kind: Callable[..., Any], save: Act, check: Act = equal, setup: Act = old, **options: Any) -> str:
    """What is said; the line fails again when replayed."""
    with pytest.raises(AssertionError) as raised:
        kind(save, check, setup=setup, **options)
    told = str(raised.value)
    (line,) = [line for line in told.splitlines() if line.startswith("txfiles-replay: ")]
    with pytest.raises(AssertionError, match=re.escape(line)):
        kind(save, check, setup=setup, replay=line, **options)
    return told


# -- killed on the real file system -----------------------------------------------------------------------------------


def test_the_four_files_survive_kills(memory: Path) -> None:
    kills = survives_kills(a_third(context.ContextManager), agree, setup=two_messages, where=memory)
    assert kills > 20
    assert list(memory.iterdir()) == []


def test_four_files_one_after_another_do_not(memory: Path) -> None:
    told = failure_of(survives_kills, a_third(context.NaiveContextManager), agree, two_messages, where=memory)
    assert "3 messages, but 2 counted and 2 turns" in told
    assert "the save was killed before" in told
    assert re.search(r"called by save \(context_manager.py:\d+\), called by save \(test_kit.py:\d+\):$", told, re.M)
    assert [line.split()[1] for line in told.splitlines() if line.startswith("!")] == ["messages.json"]


def test_every_state_between_calls_of_a_commit_is_met(memory: Path) -> None:
    """The states are those that the boundary sees."""
    root, states = memory / "root", []
    root.mkdir()
    old(root)
    with system.use(FaultyFS(system.KernelFS(), lambda *_: states.append(state_of(os.fsencode(root))))):
        together(root)
    different = [state for before, state in zip([None, *states], states, strict=False) if state != before]
    assert survives_kills(together, equal, setup=old, where=memory) == len(different)


def test_a_file_written_in_place_is_found_empty(memory: Path) -> None:
    told = failure_of(
        survives_kills, in_place, lambda root: (root / "a").read_text(encoding="utf-8") in ("old", "new"), where=memory
    )
    assert "file 0644 ''" in told
    assert "the check returned False" in told


def test_threads_are_watched(memory: Path) -> None:
    def save(root: Path) -> None:
        from threading import Thread

        thread = Thread(target=in_place, args=(root,))
        thread.start()
        thread.join()

    assert "in_place (test_kit.py:" in failure_of(survives_kills, save, where=memory)


def test_what_the_application_does_at_its_start_counts(memory: Path) -> None:
    """A save with a marker of its own, and the code that then repairs."""

    def save(root: Path) -> None:
        (root / "marker").touch()
        (root / "a").write_text("new", encoding="utf-8")
        (root / "sub" / "b").write_text("new", encoding="utf-8")
        (root / "marker").unlink()

    def repair(root: Path) -> None:
        if (root / "marker").exists():
            (root / "a").write_text("old", encoding="utf-8")
            (root / "sub" / "b").write_text("old", encoding="utf-8")

    assert survives_kills(save, equal, setup=old, recover=repair, where=memory) >= 6
    failure_of(survives_kills, save, where=memory)


def test_a_save_that_returns_in_a_wrong_state_is_found(memory: Path) -> None:
    def check(root: Path) -> None:
        assert (root / "a").read_text(encoding="utf-8") == "old"

    with pytest.raises(AssertionError, match="after the save has returned"):
        survives_kills(lambda root: os.truncate(root / "a", 0), check, setup=old, where=memory)


def _raises(root: Path) -> None:
    raise KeyError("no such thing")


@pytest.mark.parametrize(
    ("save", "said"),
    [
        (_raises, "(?s)the save fails by itself.*no such thing"),
        (lambda root: os._exit(3), "ends its process by itself"),
        (lambda root: None, "changed nothing"),
        (lambda root: (root / "a").read_text(encoding="utf-8"), "changed nothing"),
    ],
    ids=["raises", "exits", "nothing", "reads"],
)
def test_a_save_that_proves_nothing_is_an_error(memory: Path, save: Act, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        survives_kills(save, equal, setup=old, where=memory)


@pytest.mark.parametrize("line", ["nonsense", "txfiles-replay: kill=0", "txfiles-replay: kill=999"])
def test_a_line_that_leads_nowhere_is_refused(memory: Path, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        survives_kills(together, equal, setup=old, where=memory, replay=line)


# -- without power in the simulated one -------------------------------------------------------------------------------


def test_the_four_files_survive_power_losses() -> None:
    explored = survives_power_loss(a_third(context.ContextManager), agree, setup=two_messages, caps=(12,))
    assert explored.points > 40
    assert explored.states > 300


def test_the_recovery_is_crashed_too() -> None:
    once = survives_power_loss(together, equal, setup=old, caps=(4,))
    assert survives_power_loss(together, equal, setup=old, caps=(4, 1)).points > 3 * once.points


def test_two_transactions_are_not_one_save() -> None:
    told = failure_of(survives_power_loss, in_two_parts, caps=(16,))
    assert "the check fails: AssertionError('the check returned False')" in told or "none of those allowed" in told
    assert "---- crash after call" in told


def test_a_check_that_is_never_content_is_said_so() -> None:
    told = failure_of(
        survives_power_loss, together, lambda root: (root / "a").read_text(encoding="utf-8") == "old", caps=(4,)
    )
    assert "the check fails: AssertionError('the check returned False')" in told


def test_a_save_that_is_not_durable_is_found() -> None:
    def save(root: Path) -> None:
        with FileTransaction(root, durability="process") as tx:
            tx.write("a", "new")
            tx.write("sub/b", "new")

    assert "the power fails" in failure_of(survives_power_loss, save, caps=(16,))


def test_a_save_past_txfiles_is_an_error_that_says_so() -> None:
    with pytest.raises(AssertionError, match="wrote past txfiles: 'a'") as raised:
        survives_power_loss(in_place, equal, setup=old)
    assert "past txfiles the save called open '" in raised.value.__notes__[0]


def test_a_save_may_make_its_root_if_it_is_not_there() -> None:
    def save(root: Path) -> None:
        os.makedirs(root, exist_ok=True)
        root.mkdir(parents=True, exist_ok=True)
        together(root)

    assert survives_power_loss(save, equal, setup=old, caps=(4,)).points


def test_what_a_save_swallows_is_in_the_report() -> None:
    def save(root: Path) -> None:
        try:
            with FileTransaction(root) as tx:
                tx.write("b", (root / "a").read_bytes())
        except OSError:
            raise RuntimeError("could not save") from None

    with pytest.raises(RuntimeError, match="could not save") as raised:
        survives_power_loss(save, equal, setup=old)
    assert "past txfiles the save called open '" in raised.value.__notes__[0]
    assert "/a'" in raised.value.__notes__[0]


def test_a_save_that_does_nothing_in_the_simulation_is_an_error() -> None:
    with pytest.raises(AssertionError, match="changed nothing"):
        survives_power_loss(lambda root: None, equal, setup=old)


def test_the_state_before_is_copied_as_it_is() -> None:
    seen = []

    def setup(root: Path) -> None:
        old(root)
        (root / "link").symlink_to("sub/b")
        (root / "sub").chmod(0o750)
        (root / "a").chmod(0o600)

    def check(root: Path) -> None:
        found = {path.name: path.lstat().st_mode & 0o777 for path in root.rglob("*") if not path.is_symlink()}
        seen.append((found, os.readlink(root / "link"), (root / "a").read_text(encoding="utf-8")))

    survives_power_loss(together, check, setup=setup, caps=(4,))
    modes = {"a": 0o600, "sub": 0o750, "b": 0o644}
    assert sorted(seen, key=str) == [(modes, "sub/b", "new"), (modes, "sub/b", "old")]


# -- the plugin -------------------------------------------------------------------------------------------------------

SAMPLE = """
from txfiles import FileTransaction

def setup(root):
    (root / "a").write_text("1")
    (root / "b").write_text("1")

def check(root):
    assert (root / "a").read_text() == (root / "b").read_text()

def right(root):
    with FileTransaction(root) as tx:
        tx.write("a", "2")
        tx.write("b", "2")

def wrong(root):
    for name in "ab":
        with FileTransaction(root) as tx:
            tx.write(name, "2")

def test_right(crash_test):
    assert crash_test.survives_kills(right, check, setup=setup) > 20
    assert crash_test.survives_power_loss(right, check, setup=setup, caps=(4,)).points > 20

def test_killed(crash_test):
    crash_test.survives_kills(wrong, check, setup=setup)

def test_unplugged(crash_test):
    crash_test.survives_power_loss(wrong, check, setup=setup, caps=(4,))
"""


def _pytest(where: Path, *words: str) -> str:
    """As a user runs it, in a project of his own."""
    (where / "test_save.py").write_text(SAMPLE, encoding="utf-8")
    (where / "pytest.ini").touch()
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    env.pop("CI", None)  # with it pytest prints whole messages once more
    argv = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "txfiles.testing.plugin", "-p", "no:cacheprovider"]
    argv += ["--basetemp", str(where / "temporary")]
    done = subprocess.run(
        [*argv, *words], cwd=where, env=env, capture_output=True, text=True, check=False, encoding="utf-8"
    )
    return done.stdout + done.stderr


def test_the_fixture_offers_both_and_says_how_to_replay(memory: Path) -> None:
    told = _pytest(memory)
    assert "PASSED test_save.py::test_right" in told
    assert "2 failed, 1 passed" in told
    assert "_explorer.py" not in told
    commands = re.findall(r"this crash alone: pytest '(\S+)' --txfiles-replay '(.*)'", told)
    assert [test for test, _ in commands] == ["test_save.py::test_killed", "test_save.py::test_unplugged"]
    for test, line in commands:
        again = _pytest(memory, test, "--txfiles-replay", line)
        assert "1 failed" in again
        assert line in again


def test_the_plugin_is_light() -> None:
    code = "import sys, txfiles.testing.plugin; print(*sys.modules)"
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, encoding="utf-8"
    )
    loaded = done.stdout.split()
    assert [name for name in loaded if name.startswith("txfiles.testing.")] == ["txfiles.testing.plugin"]
    assert not {"orjson", "filelock", "ctypes"} & set(loaded)


def test_the_plugin_is_an_entry_point() -> None:
    import tomllib

    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"txfiles": "txfiles.testing.plugin"}


def test_what_the_package_offers_comes_when_it_is_used() -> None:
    import txfiles.testing

    for name in txfiles.testing.__all__:
        assert getattr(txfiles.testing, name) is not None
    assert txfiles.testing.SimFS is SimFS
    with pytest.raises(AttributeError, match="nothing"):
        getattr(txfiles.testing, "nothing" + "_of_that_name")
