"""The JSON and text files of one application behind one helper, with symbolic links and a full disk.

An application that installs items keeps four files: the installed items, the sources they come from, an index cache,
and the summaries that were delivered. One step, an installation, changes all of them. Two of the files are symbolic
links into `dotfiles/`, a checkout that the user keeps under version control.

    python examples/state_stores.py [directory] [--naive]

Items are installed, then one more on a full disk, then again after space was made. For root the disk is a small tmpfs;
for others, or in a directory that is named, a limit on the size of files (RLIMIT_FSIZE) stands in for it. With
`--naive` each file is replaced by a careful temp-and-rename of its own.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from _show import parser, replace, workplace

from txfiles import FileStore, FileTransaction, Snapshot
from txfiles.errors import TxFilesError

FILES = {"installed": "installed.json", "sources": "sources.txt", "index": "cache/index.json", "delivered": "log.txt"}
LINKS = {"installed.json": "dotfiles/installed.json", "sources.txt": "dotfiles/sources.txt"}
ITEMS = 20
SUMMARY = "what it is, where it comes from, what it needs and what it brings; " * 60  # 4 kB in the index, per item

State = dict[str, Any]


class Stores:
    """All files of the application: JSON documents, and texts as lists of lines."""

    def __init__(self, root: Path) -> None:
        self.store = FileStore(root)

    @contextmanager
    def change(self) -> Iterator[State]:
        """Read all, let the block change it, replace all; nothing if the block or the disk fails."""
        with self.store.transaction() as tx:
            state = read(tx)
            yield state
            for name, path in FILES.items():
                tx.write(path, text(path, state[name]))

    def load(self) -> State:
        with self.store.snapshot(*FILES.values()) as snap:
            return read(snap)


class NaiveStores(Stores):
    """The same with the usual cure: each file is whole, the set is not, and a link is replaced by a file."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def change(self) -> Iterator[State]:
        state = self.load()
        yield state
        (self.root / "cache").mkdir(exist_ok=True)
        for name, path in FILES.items():
            replace(self.root / path, text(path, state[name]))

    def load(self) -> State:
        paths = {name: self.root / path for name, path in FILES.items()}
        return {
            name: parse(path.name, path.read_text(encoding="utf-8") if path.exists() else "")
            for name, path in paths.items()
        }


def read(view: FileTransaction | Snapshot) -> State:
    return {name: parse(path, view.read_text(path) if view.exists(path) else "") for name, path in FILES.items()}


def parse(path: str, content: str) -> Any:
    if path.endswith(".json"):
        return json.loads(content or "{}")
    return content.splitlines()


def text(path: str, value: Any) -> str:
    if path.endswith(".json"):
        return json.dumps(value, indent=2) + "\n"
    return "".join(f"{line}\n" for line in value)


def install(stores: Stores, item: str) -> None:
    """The one step: it changes all four files."""
    with stores.change() as state:
        state["installed"][item] = "1.0"
        state["sources"].append(f"https://example.org/{item}")
        state["index"][item] = {"version": "1.0", "summary": SUMMARY}
        state["delivered"].append(f"{item} 1.0 was installed")


def look(root: Path, stores: Stores) -> bool:
    """Say how many items each file has and what became of the links; whether all is well."""
    counts = {name: len(value) for name, value in stores.load().items()}
    links = [name for name, target in LINKS.items() if (root / name).is_symlink() and (root / target).exists()]
    leftovers = [str(path.relative_to(root)) for path in root.rglob("*.tmp")]
    print("  items in " + ", ".join(f"{FILES[name]}: {count}" for name, count in counts.items()))
    print(f"  links that still lead into dotfiles/: {len(links)} of {len(LINKS)}")
    print(f"  left over: {', '.join(leftovers) or 'nothing'}")
    return len(set(counts.values())) == 1 and len(links) == len(LINKS) and not leftovers


@contextmanager
def small_disk(where: Path) -> Iterator[bool]:
    """A tmpfs of 1 MB on `where`, where that is allowed; whether it is."""
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(where)]
    mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", where], check=True)


@contextmanager
def full(root: Path, *, mounted: bool) -> Iterator[None]:
    """In the block the small disk has 48 kB left, or no file can grow beyond that."""
    room = 48 * 1024
    if mounted:
        ballast = root / "ballast"
        with ballast.open("wb", buffering=0) as file:
            with suppress(OSError):
                while file.write(bytes(4096)):
                    pass
            file.truncate(file.tell() - room)
        yield
        ballast.unlink()
    else:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
        yield
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def main() -> int:
    options = parser(__doc__).parse_args()
    with workplace(options.directory, "stores") as root, ExitStack() as stack:
        mounted = options.directory is None and stack.enter_context(small_disk(root))
        for name, target in LINKS.items():
            (root / target).parent.mkdir(exist_ok=True)
            (root / target).touch()
            (root / name).symlink_to(target)
        stores = NaiveStores(root) if options.naive else Stores(root)

        for number in range(ITEMS):
            install(stores, f"item-{number}")
        print(f"{ITEMS} items installed")
        well = [look(root, stores)]

        print(f"one more, while {'the disk is full' if mounted else 'no file can grow (in place of a full disk)'}")
        with full(root, mounted=mounted):
            try:
                install(stores, "one-more")
            except (OSError, TxFilesError) as error:
                print(f"  {type(error).__name__}: {error}")
            well.append(look(root, stores))

        print("again, after space was made")
        install(stores, "one-more")
        well.append(look(root, stores))
    print("all is well" if all(well) else f"{well.count(False)} of {len(well)} looks found something wrong")
    return 0 if all(well) else 1


if __name__ == "__main__":
    sys.exit(main())
