"""Nothing that the package does warns, in the interpreter's strictest mode."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

STRICT = [sys.executable, "-X", "dev", "-W", "error", "-X", "warn_default_encoding"]

PROGRAM = """
import asyncio, io, pkgutil, sys
import txfiles
from txfiles import AsyncFileTransaction, FileStore, FileTransaction, JsonDocuments, commit_prepared, recover, status
from txfiles.cli import main
from txfiles.testing import survives_kills, survives_power_loss

for module in pkgutil.walk_packages(txfiles.__path__, "txfiles."):
    if not module.name.endswith("__main__"):
        __import__(module.name)

root = sys.argv[1]
for durability in ("full", "process"):
    with FileTransaction(root, durability=durability, create=True) as tx:
        tx.write("new/a", "text")
        tx.write_json("b.json", {"a": 1})
        with tx.open("c", "w") as file:
            file.write("text")
    with FileTransaction(root, durability=durability) as tx:
        assert tx.read_text("new/a") == "text"
        tx.move("new", "moved")
        tx.delete("c")
    with FileTransaction(root, durability=durability) as tx:
        tx.delete_tree("moved")
with FileTransaction(root) as tx:
    tx.write("a", "prepared")
    prepared = tx.prepare()
commit_prepared(root, prepared)
assert recover(root).clean and status(root).clean
store = FileStore(root)
with store.snapshot("a") as snap:
    assert snap.read_text("a") == "prepared"
docs = JsonDocuments(root, {"state": {}})
docs.save(state={"a": 1})
assert docs.load() == {"state": {"a": 1}}

async def change():
    async with AsyncFileTransaction(root) as tx:
        await tx.write("a", "async")
        async with tx.open("d", "w") as file:
            await file.write("text")

asyncio.run(change())

def save(root):
    with FileTransaction(root) as tx:
        tx.write("a", "1")

survives_kills(save, lambda root: None)
survives_power_loss(save, lambda root: None)
sys.argv[0] = "txfiles"
for command in (["status"], ["verify"], ["recover"], ["put", root, "a=" + __file__]):
    assert main(command if len(command) > 1 else [*command, root]) == 0
"""


def test_nothing_warns(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    ran = subprocess.run(
        [*STRICT, program, tmp_path / "root"], check=False, capture_output=True, text=True, encoding="utf-8"
    )
    assert (ran.returncode, ran.stderr) == (0, "")
