# ruff: noqa: E501  the texts to replace are as they stand in the source
"""Mutants of the protocol: each lacks one sync or one check, or does two things in the wrong order.

`python -m tests.crash.mutants NAME...` runs them, each in a process of its own with its own copy of the package, against
the scenarios that are named beside it; with `--all` against every scenario, until one finds it. The files of the
checkout stay as they are: the changed source is in memory only.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import signal
import sys
import time
import traceback
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
AT_MOST = 600  # seconds for one mutant


@dataclass(frozen=True)
class Mutant:
    """In `module`, `old` (which is there once) becomes `new`. `killer` finds it, with at most `caps` states a crash."""

    name: str
    module: str
    old: str
    new: str
    killer: str
    caps: tuple[int, ...] = (32,)

    def source(self) -> str:
        """The source of the module with the change in it."""
        text = (ROOT / "txfiles" / f"{self.module}.py").read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"the mutant {self.name!r} no longer fits the source: {self.old!r}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Outcome:
    """`found` names the scenario that found the mutant, and is empty for one that survived."""

    name: str
    found: str
    told: str
    seconds: float


class _Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Lets one module of the package be another one."""

    def __init__(self, mutant: Mutant) -> None:
        self.module = f"txfiles.{mutant.module}"
        self.source = mutant.source()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname == self.module else None

    def exec_module(self, module: types.ModuleType) -> None:
        exec(compile(self.source, f"<mutant of {self.module}>", "exec"), module.__dict__)


def try_here(mutant: Mutant | None, scenarios: Sequence[str], caps: Sequence[int]) -> tuple[str, str]:
    """Explore with the mutant in the place of its module. REQUIRES: a process that has not imported the package."""
    if mutant is not None:
        assert "txfiles" not in sys.modules
        sys.meta_path.insert(0, _Loader(mutant))
    from tests.crash.mutant_scenarios import EVERYTHING
    from txfiles.testing import explore

    for name in scenarios or EVERYTHING:
        scenario = EVERYTHING[name]
        try:
            explore(scenario, caps)
        except Exception as error:
            return name, f"{type(error).__name__}: {error}"
    return "", ""


def run(mutants: Sequence[Mutant], *, everything: bool = False, at_once: int = 2) -> Iterator[Outcome]:
    """Try the mutants, some at a time; in the order in which they end."""
    running: dict[int, tuple[Mutant, int, float]] = {}
    todo = list(reversed(mutants))
    while todo or running:
        while todo and len(running) < at_once:
            mutant = todo.pop()
            out, into = os.pipe()
            pid = os.fork()
            if not pid:
                _child(mutant, into, everything=everything)
            os.close(into)
            running[pid] = mutant, out, time.monotonic()
        pid, status = os.wait()
        mutant, out, began = running.pop(pid)
        with open(out) as pipe:
            told = pipe.read()
        found, why = json.loads(told) if told else ("", f"no answer, status {status}: see stderr")
        yield Outcome(mutant.name, found, why, time.monotonic() - began)


def _child(mutant: Mutant, into: int, *, everything: bool) -> None:
    signal.alarm(AT_MOST)
    try:
        scenarios, caps = ((), (128, 8)) if everything else ((mutant.killer,), mutant.caps)
        found, why = try_here(mutant, scenarios, caps)
        with open(into, "w") as pipe:
            json.dump((found, why[:4000]), pipe)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def control() -> None:
    """The scenarios find nothing where nothing was changed."""
    from tests.crash.mutant_scenarios import EXTRA

    for name in EXTRA:
        print(json.dumps({"name": name, "found": try_here(None, [name], (32,)), "seconds": 0}), flush=True)


def main(arguments: Sequence[str]) -> None:
    import pytest  # noqa: F401  once for all children

    if "--control" in arguments:
        control()
        return
    chosen = [mutant for mutant in BY_NAME.values() if mutant.name in arguments or not set(arguments) - {"--all"}]
    for outcome in run(chosen, everything="--all" in arguments):
        print(json.dumps(vars(outcome)), flush=True)


def _without(name: str, module: str, old: str, killer: str, *caps: int) -> Mutant:
    """Without one statement, of one line or several; `pass` stands where it was."""
    indent = old[: len(old) - len(old.lstrip())]
    return Mutant(name, module, old, f"{indent}pass  #", killer, caps or (32,))


SYNCS = [
    Mutant(
        "first round: no token",
        "_durable",
        "for op in journal.ops if op.new is not None and op.new.link is None\n    ]\n    jobs.append",
        "for op in ()\n    ]\n    jobs.append",
        "replace-1",
    ),
    _without(
        "first round: no journal",
        "_durable",
        '    jobs.append(partial(_sync_file, home, _layout.journal(journal.tid, "intent")))',
        "replace-4",
    ),
    Mutant(
        "first round: no private directory",
        "_durable",
        "    jobs.append(partial(sync_private, home))\n    jobs += [",
        "    jobs += [",
        "replace-4",
    ),
    Mutant("first round: no old files", "_durable", "partial(_sync_old, home, journal, op)", "int", "fresh-ground"),
    _without(
        "first round: no directories above",
        "_durable",
        "    jobs += [partial(_sync_directory, home, path) for path in sorted(unproven)]",
        "fresh-ground",
    ),
    _without("home round: no format", "_durable", "    _sync_file(home, _layout.FORMAT)", "first-commit"),
    Mutant(
        "home round: no private directory",
        "_durable",
        "    sync_private(home)\n    _sync_dir(home, home.root_fd)",
        "    _sync_dir(home, home.root_fd)",
        "first-commit",
    ),
    _without("home round: no root", "_durable", "    _sync_dir(home, home.root_fd)", "first-commit"),
    _without("home round: no parent of the root", "_durable", "        _sync_dir(home, parent)", "fresh-root"),
    Mutant(
        "second round: no private directory",
        "_durable",
        "        sync_private(home)\n        private_done",
        "        private_done",
        "delete",
    ),
    Mutant(
        "second round: no directories",
        "_durable",
        "home.fs.run_all([private, *(partial(_sync_directory, home, path) for path in sorted(touched))])",
        "home.fs.run_all([private])",
        "replace-4",
    ),
    Mutant(
        "given up: the private directory is not synced",
        "_protocol",
        "                sync_private(home)  # or an intent",
        "                pass  # or an intent",
        "given-up",
    ),
    Mutant(
        "abandon: no directories",
        "_protocol",
        '{_paths.split(op.path)[0] for op in journal.ops if op.kind in ("mkdir", "rmdir")})\n    retire',
        "())\n    retire",
        "abandon-directories",
    ),
    Mutant(
        "retire: the private directory is not synced",
        "_protocol",
        '    if journal.durability == "full":\n        sync_private(home)\n    for op in journal.ops:',
        "    for op in journal.ops:",
        "undone-then-theirs",
    ),
    Mutant(
        "two-phase: the decision is not synced",
        "_protocol",
        "                sync_private(self.home)  # a decision",
        "                pass  # a decision",
        "two-phase",
    ),
    Mutant(
        "apply: deletes are not synced in the private directory before directories change",
        "_protocol",
        '{_paths.split(op.path)[0] for op in by_kind["delete"]}, private=True)',
        '{_paths.split(op.path)[0] for op in by_kind["delete"]})',
        "delete-tree",
    ),
    Mutant(
        "apply: the parents of new directories are not synced before writes",
        "_protocol",
        'sync_directories(home, parents | {op.path for op in by_kind["mkdir"]})',
        'sync_directories(home, {op.path for op in by_kind["mkdir"]} - parents)',
        "create",
    ),
    Mutant(
        "apply: new directories are not synced before writes",
        "_protocol",
        'sync_directories(home, parents | {op.path for op in by_kind["mkdir"]})',
        "sync_directories(home, parents)",
        "create",
    ),
    _without(
        "forced: a new parent is not synced",
        "_protocol",
        "            sync_directories(home, [_paths.split(directory)[0]])",
        "forced-parent",
    ),
    Mutant(
        "undo: T.aborting is not synced",
        "_protocol",
        "        sync_private(home)  # or recovery would roll forward",
        "        pass  # or recovery would roll forward",
        "undo-new-tree",
    ),
    Mutant(
        "undo: the parents of directories that come back are not synced before deleted files do",
        "_protocol",
        'sync_directories(home, parents | {op.path for op in made if op.kind == "rmdir"})',
        'sync_directories(home, {op.path for op in made if op.kind == "rmdir"} - parents)',
        "undo-old-tree",
    ),
    Mutant(
        "undo: directories that come back are not synced before deleted files do",
        "_protocol",
        'sync_directories(home, parents | {op.path for op in made if op.kind == "rmdir"})',
        "sync_directories(home, parents)",
        "undo-empty-directory",
    ),
    Mutant(
        "undo: no second round",
        "_protocol",
        "        second_round(home, journal, [False])\n    retire",
        "        pass\n    retire",
        "undone",
    ),
    Mutant(
        "commit: no second round",
        "_protocol",
        "                second_round(self.home, self.journal, private_done)",
        "                private_done[0] = True",
        "replace-1",
    ),
    _without(
        "recovery: what is seen is not synced",
        "_recover",
        "        sync_private(home)  # what is seen",
        "recovering-undo",
    ),
    _without("recovery: no second round", "_recover", "        second_round(home, journal, [False])", "recovering"),
]

CHECKS = [
    # identity
    Mutant(
        "identity: size and mtime of another are ours",
        "_evidence",
        "if (found.st_size, found.st_mtime_ns) != (recorded.size, recorded.mtime_ns):",
        "if False:",
        "theirs-meanwhile",
    ),
    Mutant(
        "identity: any size",
        "_evidence",
        "if (found.st_size, found.st_mtime_ns) != (recorded.size, recorded.mtime_ns):",
        "if found.st_mtime_ns != recorded.mtime_ns:",
        "theirs-in-a-tick",
    ),
    Mutant(
        "identity: any mtime",
        "_evidence",
        "if (found.st_size, found.st_mtime_ns) != (recorded.size, recorded.mtime_ns):",
        "if found.st_size != recorded.size:",
        "theirs-meanwhile",
    ),
    Mutant(
        "identity: any inode",
        "_evidence",
        "return found.st_ino == recorded.ino or not self.same_tree",
        "return True",
        "theirs-new-inode",
    ),
    Mutant(
        "identity: inode numbers count in a copied tree",
        "_evidence",
        "return found.st_ino == recorded.ino or not self.same_tree",
        "return found.st_ino == recorded.ino",
        "copied",
    ),
    Mutant(
        "identity: any text of a link",
        "_evidence",
        "return self.fs.readlink(at, name) == recorded.link",
        "return True",
        "theirs-link",
    ),
    Mutant(
        "new: without the digest in a copied tree",
        "_evidence",
        "return self.same_tree or self._digest(*self.home.tree.at(op.path), target) == op.digest",
        "return True",
        "copied-theirs",
    ),
    Mutant(
        "deleted: not when it was written to since",
        "_evidence",
        "return token.st_size > 0 and not self.is_old(op, target)",
        "return False",
        "deleted-but-open",
    ),
    Mutant(
        "token: any content",
        "_evidence",
        "return self._digest(self.home.private_fd, self.token_name(op), token) == op.digest",
        "return True",
        "token-damaged",
    ),
    Mutant("token: any metadata", "_evidence", " or not self._has_meta(op, token)", "", "token-metadata"),
    Mutant(
        "token: any kind",
        "_evidence",
        "        if not self.is_file_or_link(op, token):\n            return False\n",
        "",
        "token-link-replaced",
    ),
    # proof
    Mutant(
        "proof: not by a delete",
        "_evidence",
        "return self.is_deleted_file(op, self.token(op), self.target(op))",
        "return False",
        "replace-and-delete",
    ),
    Mutant(
        "proof: not by both names of one rename",
        "_evidence",
        "return same_inode(target, token)  # both",
        "return False  # both",
        "replace-4",
    ),
    Mutant(
        "proof: a token that is there still",
        "_evidence",
        "            return same_inode(target, token)  # both names of one rename (A1)\n        if not self._has",
        "            pass\n        if not self._has",
        "same-bytes-meanwhile",
    ),
    Mutant(
        "proof: any content",
        "_evidence",
        "        if not self._has_new_content(op, target):\n            return False\n",
        "",
        "replace-4",
    ),
    Mutant(
        "proof: any content of the same size and mode",
        "_evidence",
        "return self._digest(at, name, target) == op.digest",
        "return True",
        "replace-4",
    ),
    Mutant(
        "proof: any mode",
        "_evidence",
        "(target.st_size, stat.S_IMODE(target.st_mode)) != (\n            op.new.size,\n            op.meta.mode,\n        )",
        "target.st_size != op.new.size",
        "same-new-file-meanwhile",
    ),
    Mutant("proof: the same bytes as before", "_evidence", " or self._old_differed(op)", " or True", "same-bytes"),
    Mutant(
        "proof: without an old file to compare with",
        "_evidence",
        "        if old is None:\n            return False\n        assert op.meta is not None\n        if stat.S_IFMT(old",
        "        if old is None:\n            return True\n        assert op.meta is not None\n        if stat.S_IFMT(old",
        "same-bytes",
    ),
    Mutant(
        "proof: not when new bytes are not compared with old ones",
        "_evidence",
        "return self._digest(self.home.private_fd, self.old_name(op), old) != op.digest",
        "return True",
        "same-bytes",
    ),
    Mutant("proof: not in a copied tree", "_evidence", " or self._old_differed(op)", "", "copied-intent"),
    # conflicts
    Mutant(
        "forward: a write over another's file",
        "_evidence",
        '            return not self.is_old(op, target)\n        if op.kind == "delete":',
        '            return False\n        if op.kind == "delete":',
        "theirs-meanwhile",
    ),
    Mutant(
        "forward: a delete of another's file",
        "_evidence",
        "return not done and not self.is_old(op, target)",
        "return False",
        "theirs-delete",
    ),
    Mutant(
        "forward: a lost token",
        "_evidence",
        'raise _lost(op, "is missing")\n            return False',
        "pass\n            return False",
        "token-lost",
    ),
    Mutant(
        "forward: a lost target",
        "_evidence",
        "return True  # lost or deleted",
        "return False  # lost or deleted",
        "target-lost",
    ),
    Mutant(
        "forward: a damaged token where nothing was",
        "_evidence",
        '            if op.kind == "write" and not self.token_is_whole(op, token):\n',
        "            if False:\n",
        "token-damaged-new",
    ),
    Mutant(
        "forward: both names are a conflict",
        "_evidence",
        "if same_inode(token, target) or self.is_new(op, target):\n                return False\n            if not",
        "if not",
        "replace-4",
    ),
    Mutant(
        "forward: a directory that got a file",
        "_evidence",
        "return any(path not in going or path in blocked for path in inside)",
        "return False",
        "theirs-in-directory",
    ),
    Mutant(
        "forward: a parent that is gone",
        "_evidence",
        "            if token is not None and (op.path in blocked or not self._has_parent(op, coming, blocked)):\n                return True\n",
        "",
        "parent-lost",
    ),
    Mutant(
        "forward: what makes room is not done",
        "_evidence",
        "            if op.path in going and self._still_to_go(op, target):\n                target = None\n",
        "",
        "rotate-directory",
    ),
    Mutant(
        "undo: another's file that was new",
        "_evidence",
        "return target is not None and not self.is_new(op, target)",
        "return False",
        "theirs-in-undo",
    ),
    Mutant(
        "undo: another's file over a new one",
        "_evidence",
        "return not same_inode(old, target) and not self.is_new(op, target)",
        "return False",
        "theirs-in-undo",
    ),
    Mutant("undo: a lost old file", "_evidence", 'raise _lost(op, "(the old file) is missing")', "pass", "old-lost"),
    Mutant(
        "undo: of a write that was not applied",
        "_protocol",
        "applied = token is None or (target is not None and same_inode(token, target))",
        "applied = True",
        "theirs-beside-undo",
    ),
    Mutant(
        "undo: both names of one rename",
        "_protocol",
        "    elif target is not None and token is not None and same_inode(token, target):\n        home.fs.unlink(*home.tree.at(op.path))",
        "    elif False:\n        pass",
        "undo-new-file",
    ),
    Mutant(
        "undo: a directory stays as it was made",
        "_protocol",
        "        elif stat.S_ISDIR(target.st_mode) and target.st_mode & 0o777 == _UNFINISHED:\n            _finish_directory(home, op)",
        "        elif False:\n            pass",
        "undo-old-tree",
        (32, 4),
    ),
    # steps of the commit
    Mutant(
        "prepare: another's bytes in a token",
        "_protocol",
        "    if (found.st_ino, found.st_size, found.st_mtime_ns) != (op.new.ino, op.new.size, op.new.mtime_ns):",
        "    if False:",
        "token-meddled",
    ),
    Mutant(
        "prepare: no home round",
        "_protocol",
        'if durability == "full" and (head is None or not head.durable):',
        "if False:",
        "first-commit",
    ),
    Mutant(
        "prepare: no home round after a process transaction",
        "_protocol",
        "(head is None or not head.durable)",
        "head is None",
        "after-process",
    ),
    Mutant(
        "prepare: the directories of HEAD are not ours",
        "_durable",
        "if path and ino and (head is None or not head.vouches_for_dir(path, ino))",
        "if False",
        "fresh-ground",
    ),
    Mutant(
        "apply: a delete whose two names are one file",
        "_protocol",
        "    if same_inode(token, target):\n        home.fs.unlink(at, name)",
        "    if False:\n        home.fs.unlink(at, name)",
        "replace-and-delete",
    ),
    Mutant(
        "apply: a delete that is done",
        "_protocol",
        "elif evidence.is_deleted_file(op, token, target) or op.index in skip:",
        "elif op.index in skip:",
        "theirs-after-delete",
    ),
    Mutant(
        "apply: a delete of another's file",
        "_protocol",
        "    elif op.index in force or evidence.is_old(op, target):\n        home.fs.rename(at, name, home",
        "    elif True:\n        home.fs.rename(at, name, home",
        "theirs-in-commit-that-deletes",
    ),
    Mutant(
        "apply: a write whose two names are one file",
        "_protocol",
        "(target is not None and (same_inode(token, target) or evidence.is_new(op, target)))",
        "False",
        "replace-1",
    ),
    Mutant(
        "apply: a write over another's file",
        "_protocol",
        "elif target is None or op.index in force or evidence.is_old(op, target):",
        "elif True:",
        "theirs-in-commit",
    ),
    Mutant(
        "apply: a token of another kind",
        "_protocol",
        "    elif not evidence.is_file_or_link(op, token):",
        "    elif False:",
        "token-replaced-in-commit",
    ),
    Mutant(
        "apply: a directory stays as it was made",
        "_protocol",
        "    elif stat.S_ISDIR(target.st_mode):\n        _finish_directory(home, op)",
        "    elif stat.S_ISDIR(target.st_mode):\n        pass",
        "create",
    ),
    # failed syncs
    _without("taint: nobody asks", "_recover", "    _require_untainted(home, pending, journal)", "failed-sync"),
    _without(
        "taint: not after the second round",
        "_protocol",
        '            taint(self.home, self.journal, "committed")',
        "failed-sync",
    ),
    _without(
        "taint: not in an undo",
        "_protocol",
        '                taint(self.home, self.journal, "aborting")',
        "failed-sync-in-undo",
    ),
    _without(
        "taint: not in a recovery that rolls forward",
        "_recover",
        "        taint(home, journal, state)",
        "failed-sync-in-recovery",
    ),
    _without(
        "taint: not in a recovery that rolls back",
        "_recover",
        '        taint(home, evidence.journal, "aborting")',
        "failed-sync-in-roll-back",
    ),
    _without("taint: a failed sync is not noted", "_durable", "            home.sync_failed = True", "failed-sync"),
    # which journals
    Mutant(
        "recovery: a journal older than HEAD", "_recover", " or journal.seq <= head.seq", "", "stale-journal", (64,)
    ),
    Mutant(
        "recovery: a damaged intent",
        "_recover",
        'if pending.state == "intent" or pending.process:',
        "if pending.process:",
        "replace-1",
    ),
    Mutant(
        "recovery: a damaged process journal",
        "_recover",
        'if pending.state == "intent" or pending.process:',
        'if pending.state == "intent":',
        "process-power-loss",
    ),
    Mutant(
        "recovery: damage of a process transaction",
        "_recover",
        "and journal.boot != home.fs.boot_id() and not _is_whole(home, pending, journal)",
        "and False",
        "process-power-loss",
    ),
    _without(
        "recovery: earlier names of a journal",
        "_recover",
        "        home.remove(_layout.journal(journal.tid, earlier))",
        "replace-1",
    ),
    Mutant(
        "recovery: an intent without proof",
        "_recover",
        'state == "intent" and not evidence.proves_commit()',
        "False",
        "replace-1",
    ),
    Mutant(
        "recovery: an intent with proof",
        "_recover",
        'state == "intent" and not evidence.proves_commit()',
        'state == "intent"',
        "replace-4",
    ),
    Mutant(
        "recovery: what is loose and needed",
        "_inventory",
        'if parsed.kind != "old" or (head is not None and head.tid == parsed.tid):',
        "if True:",
        "lone-old",
    ),
    Mutant(
        "inventory: a prepare that had not returned",
        "_inventory",
        'if state == "prepared" and "intent" in also:',
        "if False:",
        "prepared-twice",
    ),
    Mutant("inventory: a copied tree", "_inventory", "journal, journal.ino == found.st_ino", "journal, True", "copied"),
    Mutant(
        "inventory: no tree is where it was",
        "_inventory",
        "journal, journal.ino == found.st_ino",
        "journal, False",
        "theirs-new-inode",
    ),
    Mutant(
        "inventory: process journals are not marked",
        "_protocol",
        '0o600 if durability == "full" else 0o400',
        "0o600",
        "process-power-loss",
    ),
]

_ROUND = "                second_round(self.home, self.journal, private_done)"

ORDER = [
    Mutant(
        "give up: tokens before the journal",
        "_protocol",
        "        if made:\n            home.remove(name)",
        "        staging.tokens.remove_all()\n        if made:\n            home.remove(name)",
        "given-up-same-bytes",
    ),
    Mutant(
        "abandon: the journal before the directories",
        "_protocol",
        "    evidence = Evidence(home, journal, same_tree=True)\n    for op in reversed(journal.ops):",
        "    evidence = Evidence(home, journal, same_tree=True)\n    retire(home, journal, state)\n    for op in reversed(journal.ops):",
        "abandon-directories",
    ),
    Mutant(
        "retire: tokens before the journal",
        "_protocol",
        "    home.remove(_layout.journal(journal.tid, state))\n    if",
        "    for op in journal.ops:\n        home.discard(_layout.token(journal.tid, op.index))\n        home.discard(_layout.old(journal.tid, op.index))\n    home.remove(_layout.journal(journal.tid, state))\n    if",
        "undo-then-new-file",
    ),
    Mutant(
        "retire: the sync before the removal",
        "_protocol",
        '    home.remove(_layout.journal(journal.tid, state))\n    if journal.durability == "full":\n        sync_private(home)\n',
        "    sync_private(home)\n    home.remove(_layout.journal(journal.tid, state))\n",
        "undone-then-theirs",
    ),
    Mutant(
        "prepare: the home round after the first round",
        "_protocol",
        '        if durability == "full" and (head is None or not head.durable):\n            home_round(home)\n        journal = _write_intent(home, staging, operations, durability, head, two_phase, made)\n        first_round(home, staging.tokens, journal, head)',
        "        journal = _write_intent(home, staging, operations, durability, head, two_phase, made)\n        first_round(home, staging.tokens, journal, head)\n        home_round(home)",
        "first-commit",
    ),
    Mutant(
        "prepare: targets before the first round",
        "_protocol",
        "        first_round(home, staging.tokens, journal, head)",
        "        apply(home, journal)\n        first_round(home, staging.tokens, journal, head)",
        "replace-4",
    ),
    Mutant(
        "commit: targets before the commit point",
        "_protocol",
        "            with suppress(FileNotFoundError):\n                fs.rename(private, before, private, after)",
        "            apply(self.home, self.journal)\n            with suppress(FileNotFoundError):\n                fs.rename(private, before, private, after)",
        "two-phase",
    ),
    Mutant(
        "commit: HEAD before the second round",
        "_protocol",
        _ROUND,
        "                settle(self.home, self.journal)\n" + _ROUND,
        "replace-4",
    ),
    Mutant(
        "commit: the second round before targets",
        "_protocol",
        "            apply(self.home, self.journal)\n        except Exception",
        "            second_round(self.home, self.journal, [True]) if self.durable else None\n            self.durable = False\n            apply(self.home, self.journal)\n        except Exception",
        "replace-1",
    ),
    Mutant(
        "apply: markers of directories before the barrier",
        "_protocol",
        "    if made and durable:\n        parents = {_paths.split(op.path)[0] for op in made}\n        sync_directories(home, parents | {op.path for op in by_kind",
        "    for op in made:\n        home.remove(evidence.token_name(op))\n    if made and durable:\n        parents = {_paths.split(op.path)[0] for op in made}\n        sync_directories(home, parents | {op.path for op in by_kind",
        "create",
    ),
    Mutant(
        "apply: directories before the barrier",
        "_protocol",
        'made = by_kind["rmdir"] + by_kind["mkdir"]\n    if made and durable',
        'made = by_kind["rmdir"] + by_kind["mkdir"]\n    for op in made:\n        _apply_directory(home, evidence, op, skip)\n    if made and durable',
        "delete-tree",
    ),
    Mutant(
        "apply: writes before the barrier",
        "_protocol",
        "    if made and durable:\n        parents = {_paths.split(op.path)[0] for op in made}\n        sync_directories(home, parents | {op.path for op in by_kind",
        '    for op in by_kind["write"]:\n        _apply_write(home, evidence, op, skip, force)\n    if made and durable:\n        parents = {_paths.split(op.path)[0] for op in made}\n        sync_directories(home, parents | {op.path for op in by_kind',
        "create",
    ),
    Mutant(
        "undo: T.aborting after the undo",
        "_protocol",
        "                begin_undo(self.home, self.journal)\n                finish_undo(self.home, self.journal)",
        "                finish_undo(self.home, self.journal)\n                begin_undo(self.home, self.journal)",
        "undone",
    ),
    Mutant(
        "undo: synced before it is T.aborting",
        "_protocol",
        '    with suppress(FileNotFoundError):\n        home.fs.rename(home.private_fd, before, home.private_fd, after)\n    if journal.durability == "full":\n        sync_private(home)  # or',
        "    sync_private(home)\n    with suppress(FileNotFoundError):\n        home.fs.rename(home.private_fd, before, home.private_fd, after)\n    pass  # or",
        "undo-new-tree",
    ),
    Mutant(
        "undo: retired before the second round",
        "_protocol",
        '    if durable:\n        second_round(home, journal, [False])\n    retire(home, journal, "aborting")',
        '    retire(home, journal, "aborting")\n    if durable:\n        second_round(home, journal, [False])',
        "undone",
    ),
    Mutant(
        "recovery: HEAD before the second round",
        "_recover",
        '    _second_round(home, journal, "committed")\n    settle(home, journal)',
        '    settle(home, journal)\n    _second_round(home, journal, "committed")',
        "recovering",
    ),
    Mutant(
        "recovery: T.aborting before conflicts are known",
        "_recover",
        "    conflicts = evidence.conflicts_undo()\n    if conflicts and on_conflict",
        '    if state != "aborting":\n        begin_undo(home, evidence.journal, state)\n    conflicts = evidence.conflicts_undo()\n    if conflicts and on_conflict',
        "roll-back-refused",
    ),
    Mutant(
        "recovery: loose files of live transactions",
        "_recover",
        "        if tid in live:\n            continue\n",
        "",
        "waiting",
    ),
]

# Not found by any scenario, with the reason why nothing can find them: what they lack is a second safeguard, or costs
# nothing, or could go. The deep run tries them all the same, and fails when one of them is found after all.
SPARE = [
    # the barrier of apply has synced them, and what is renamed into them later makes them parents of a write
    _without(
        "second round: no new directories",
        "_durable",
        '    touched.update(op.path for op in journal.ops if op.kind == "mkdir")',
        "create",
    ),
    # what was moved out is durable in the private directory; where it still shows, too, those are both names of one rename
    Mutant(
        "apply: deletes are not synced where they were before directories change",
        "_protocol",
        'sync_directories(home, {_paths.split(op.path)[0] for op in by_kind["delete"]}, private=True)',
        "sync_private(home)",
        "delete-tree",
    ),
    # a new file that is undone may be lost, and old files do not go into directories that go
    Mutant(
        "undo: writes are not synced where they were before directories change",
        "_protocol",
        'sync_directories(home, {_paths.split(op.path)[0] for op in files if op.kind == "write"}, private=True)',
        "sync_private(home)",
        "undo-new-tree",
    ),
    # as above: what goes with a directory is a new file that nobody needs
    Mutant(
        "undo: writes are not synced in the private directory before directories change",
        "_protocol",
        '{_paths.split(op.path)[0] for op in files if op.kind == "write"}, private=True)',
        '{_paths.split(op.path)[0] for op in files if op.kind == "write"})',
        "undo-new-tree",
    ),
    # one that comes back is as invalid or as old as before, and is dropped again
    Mutant(
        "recovery: a dropped journal is not synced",
        "_recover",
        "        sync_private(home)  # it must not",
        "        pass  # it must not",
        "two-in-a-row",
    ),
    # the digest covers it; it only spares reading a file that cannot be right
    Mutant("token: any size", "_evidence", "token.st_size != op.new.size or ", "", "token-damaged"),
    # its tokens are there until it is T.prepared, durably; a token that is there is no proof of another's file
    Mutant("proof: an intent of two phases", "_evidence", "not self.journal.two_phase and any", "any", "two-phase"),
    # the tree is the same before and after; only the version tells
    Mutant(
        "proof: not by a new identity with the same bytes",
        "_evidence",
        "(self.same_tree and self.is_new(op, target)) or ",
        "",
        "same-bytes",
    ),
    # its sequence number says the same
    Mutant("recovery: the journal of HEAD itself", "_recover", "head.tid == journal.tid or ", "", "replace-1"),
    # both names are there only until the next sync, and nothing that would tell them apart happens before it
    Mutant(
        "inventory: the earliest state counts",
        "_inventory",
        "*also, state = sorted(present, key=_ORDER.index)",
        "*also, state = sorted(present, key=_ORDER.index, reverse=True)",
        "replace-4",
    ),
    # two journals that both have to be rolled forward are never there together
    Mutant(
        "inventory: an order of its own",
        "_inventory",
        "    found.sort(key=lambda p: (-1 if p.journal is None else p.journal.seq, p.tid))",
        "    found.sort(key=lambda p: p.tid)",
        "two-in-a-row",
        (64,),
    ),
    # everything is done and durable, so that nothing is needed of them
    Mutant(
        "settle: leftovers before HEAD",
        "_protocol",
        '    committed = _layout.journal(journal.tid, "committed")',
        '    _remove_leftovers(home, journal)\n    committed = _layout.journal(journal.tid, "committed")',
        "replace-and-delete",
    ),
    # under the lock a sync changes nothing that can be seen
    Mutant(
        "recovery: looks before it syncs",
        "_recover",
        "        found = _inventory.take(home)\n    for pending",
        "    for pending",
        "two-in-a-row",
    ),
    # the proof that made the intent count stays until it is settled
    Mutant(
        "recovery: the journal's rename after the targets",
        "_recover",
        "        home.fs.rename(home.private_fd, names[0], home.private_fd, names[1])\n    try:",
        "        apply(home, journal, skip, force, same_tree=same_tree)\n        home.fs.rename(home.private_fd, names[0], home.private_fd, names[1])\n    try:",
        "replace-4",
    ),
]

MUTANTS = [*SYNCS, *CHECKS, *ORDER]
BY_NAME = {mutant.name: mutant for mutant in MUTANTS + SPARE}

if __name__ == "__main__":
    main(sys.argv[1:])
