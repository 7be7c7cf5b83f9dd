"""What a commit needs is imported before a transaction can be made: no fork, chroot or signal finds half of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.boundary import tree
from tests.support.procs import run_python
from txfiles import FileTransaction

_WORK = """
def work(root):
    FileStore(root, create=True, durability="process").update(lambda tx: tx.write("a", "0"), group=True)
    with FileTransaction(root, create=True) as tx:
        tx.write("a", "x")
        tx.write("sub/deep/b", "y" * 3_000_000)
        tx.write_json("c.json", {"n": 1})
        tx.mkdir("empty")
    with FileTransaction(root) as tx:
        tx.delete("a")
        tx.move("sub/deep/b", "b")
        tx.copy("c.json", "d.json")
        tx.delete_tree("sub")
        for number in range(20):
            tx.write(f"many/{number}", "z")
        assert tx.read_json("c.json") == {"n": 1}
        assert tx.glob("**") and tx.listdir()
        with tx.savepoint():
            tx.write("e", "x")
    try:
        with FileTransaction(root) as tx:
            tx.write("f", "x")
            1 / 0
    except ZeroDivisionError:
        pass
    with FileTransaction(root) as tx:
        tx.delete_tree("many")
"""
LEFT = {"b": b"y" * 3_000_000, "c.json": b'{\n  "n": 1\n}\n', "d.json": b'{\n  "n": 1\n}\n', "e": b"x", "empty": None}
_IMPORT = "from txfiles import FileStore, FileTransaction\n"


def test_n25_n26_nothing_is_imported_by_a_transaction(root: Path) -> None:
    done = run_python(
        _IMPORT + "import encodings.idna, locale, stringprep\n" + _WORK + "before = set(sys.modules)\n"
        "work(sys.argv[1])\nprint(sorted(set(sys.modules) - before))",
        root,
    ).check()
    assert done.stdout == "[]\n"
    assert tree(root) == LEFT


@pytest.mark.parametrize("how", ["recover", "snapshot", "documents", "async"])
def test_n26_nothing_is_imported_by_the_others(root: Path, how: str) -> None:
    with FileTransaction(root) as tx:
        tx.write("a", "x")
    code = {
        "recover": "from txfiles import recover as use",
        "snapshot": """
            from txfiles import FileStore
            def use(root):
                with FileStore(root).snapshot() as snap:
                    snap.read("a"), snap.glob("*")
        """,
        "documents": """
            from txfiles import JsonDocuments
            def use(root):
                JsonDocuments(root, {"d": {}}).save(d={"n": 1})
        """,
        "async": """
            import asyncio
            from txfiles import AsyncFileTransaction
            asyncio.run(asyncio.to_thread(int))
            async def save(root):
                async with AsyncFileTransaction(root) as tx:
                    await tx.write("a", "y")
            def use(root):
                asyncio.run(save(root))
        """,
    }[how]
    from textwrap import dedent

    code = dedent(code) + "\nbefore = set(sys.modules)\nuse(sys.argv[1])\nprint(sorted(set(sys.modules) - before))"
    assert run_python(code, root).check().stdout == "[]\n"


def test_n26_the_package_itself_imports_nothing() -> None:
    code = (
        "import txfiles; print([name for name in sys.modules if name.startswith(('txfiles.', 'filelock', 'orjson'))])"
    )
    assert run_python(code).check().stdout == "[]\n"


@pytest.mark.needs("root")
@pytest.mark.parametrize("proc", [True, False])
def test_n26_n27_a_transaction_in_another_root_directory(tmp_path: Path, proc: bool) -> None:
    from tests.support import mounts

    jail = tmp_path / "jail"
    (jail / "proc").mkdir(parents=True)
    code = _IMPORT + _WORK + "os.chroot(sys.argv[1])\nos.chdir('/')\nwork('/data')\nprint(os.listdir('/proc') == [])"
    if proc:
        with mounts.bind(Path("/proc"), jail / "proc"):
            done = run_python(code, jail).check()
    else:
        done = run_python(code, jail).check()
    assert done.stdout == f"{not proc}\n"
    assert tree(jail / "data") == LEFT


@pytest.mark.needs("root", "setfattr")
def test_n27_attributes_are_kept_without_proc(tmp_path: Path) -> None:
    jail = tmp_path / "jail"
    (jail / "data").mkdir(parents=True)
    (jail / "data/a").write_text("old", encoding="utf-8")
    os.setxattr(jail / "data/a", "user.kept", b"1")
    (jail / "data/link").symlink_to("a")
    code = (
        _IMPORT + "os.chroot(sys.argv[1])\nos.umask(0o027)\nwith FileTransaction('/data') as tx:\n"
        "    tx.write('link', 'new'); tx.write('b', 'new'); tx.move('link', 'moved')"
    )
    run_python(code, jail).check()
    assert os.getxattr(jail / "data/a", "user.kept") == b"1"
    assert (jail / "data/b").stat().st_mode & 0o777 == 0o640
    assert os.readlink(jail / "data/moved") == "a"


@pytest.mark.needs("users")
def test_n27_what_cannot_be_known_without_proc_is_refused_with_the_reason() -> None:
    from tests.support.as_user import as_user, public_directory

    with public_directory() as jail:
        (jail / "data").mkdir()
        os.chown(jail / "data", 1000, 1000)
        (jail / "data/closed").write_text("old", encoding="utf-8")
        os.chown(jail / "data/closed", 1000, 1000)
        (jail / "data/closed").chmod(0o200)
        code = (
            _IMPORT + "os.chroot(sys.argv[1])\nos.setgroups([]); os.setgid(1000); os.setuid(1000)\n"
            "with FileTransaction('/data') as tx: tx.write('closed', 'new')"
        )
        done = run_python(code, jail, **as_user(0))
        assert "/proc is not mounted, so extended attributes of what may not be read cannot be known" in done.stderr
        assert (jail / "data/closed").read_text(encoding="utf-8") == "old"


def test_n25_a_child_that_is_forked_during_the_first_transaction(root: Path) -> None:
    """Of another thread: the child begins one of its own, or has waited for its second."""
    code = """
        from txfiles import FileTransaction
        from txfiles.errors import LockTimeoutError
        root = sys.argv[1]
        def save(name):
            with FileTransaction(root, timeout=1) as tx:
                tx.write(name, "x")
        began = threading.Event()
        def first():
            began.set()
            for number in range(30):
                save(f"a{number}")
        thread = threading.Thread(target=first)
        thread.start()
        began.wait()
        children = []
        for number in range(8):
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                try:
                    save(f"b{number}")
                except LockTimeoutError:
                    pass
                os._exit(0)
            children.append(child)
        print([os.waitpid(child, 0)[1] for child in children])
        thread.join()
    """
    assert run_python(code, root).check().stdout == f"{[0] * 8}\n"


def test_n24_a_handler_saves_while_the_main_code_saves(root: Path) -> None:
    """It gets an error of its own, or saves between two others; the main code notices nothing."""
    code = """
        from pathlib import Path
        from txfiles import FileTransaction
        from txfiles.errors import NestedTransactionError
        root, saved, refused = sys.argv[1], [], []
        def handler(*_):  # which may be interrupted by itself between any two lines
            try:
                with FileTransaction(root, timeout=30, durability="process") as tx:
                    tx.write("handler", str(1 + (int(tx.read("handler")) if tx.exists("handler") else 0)))
                saved.append(1)
            except NestedTransactionError:
                refused.append(1)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0007)
        number = 0
        while number < 300 or not (saved and refused):
            number += 1
            with FileTransaction(root, durability="process") as tx:
                tx.write("main", str(number))
        signal.setitimer(signal.ITIMER_REAL, 0)
        main, handler = (int(Path(root, name).read_text(encoding="utf-8")) for name in ("main", "handler"))
        assert (main, handler) == (number, len(saved)), (main, number, handler, len(saved), len(refused))
    """
    run_python(code, root).check()
