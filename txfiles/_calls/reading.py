"""The calls of a transaction that read its staged view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from txfiles._calls.session import Session
from txfiles._format import json, paths
from txfiles._tree import facts, subtrees

if TYPE_CHECKING:
    from collections.abc import Iterable

    from txfiles._format.paths import AnyPath
    from txfiles._tree.facts import FileStat


class Reading(Session):
    """Reads of what is staged, and of what is on disk where nothing is."""

    def read(self, path: AnyPath) -> bytes:
        """The content of a file, as staged or else as on disk. Raises `OSError` and `InvalidPathError`."""
        with self._call() as staging, paths.Naming(paths.to_bytes(path)):
            return staging.content(staging.resolve(paths.normalize(path)))

    def read_text(self, path: AnyPath, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The same, decoded; newlines as they are. Raises `UnicodeDecodeError`."""
        return self.read(path).decode(encoding, errors)

    def read_json(self, path: AnyPath) -> Any:
        """The same, parsed as JSON. Raises `DocumentError` with the path; integers of any size stay exact."""
        return json.loads(self.read(path), paths.decode(paths.to_bytes(path)))

    def exists(self, path: AnyPath) -> bool:
        """Whether there is a file or directory; a symbolic link counts as what it leads to."""
        with self._call() as staging:
            return staging.exists(paths.normalize(path, directory=True))

    def listdir(self, path: AnyPath = ".") -> list[str]:
        """The names in a directory, sorted, without the private directory. Raises `OSError`."""
        with self._call() as staging:
            resolved = staging.resolve(paths.normalize(path, directory=True))
            return [paths.decode(name) for name in staging.listdir(resolved)]

    def glob(self, pattern: str | bytes, *, exclude: Iterable[str | bytes] = ()) -> list[str]:
        """The files (not directories) whose relative path matches, sorted.

        `*`, `?` and `[...]` stay within one component, `**` spans any number of them; a leading dot is nothing
        special. Symbolic links to directories are not entered. A directory that may not be listed is an error, unless
        one of the patterns in `exclude` matches its path: such ones are not entered, and nothing in them is found.

        >>> tx.glob("**/*.json", exclude=["lost+found", "**/node_modules"])
        ['b.json']
        """
        with self._call() as staging:
            return subtrees.glob(staging, pattern, exclude)

    def is_dir(self, path: AnyPath) -> bool:
        """Whether there is a directory, or a symbolic link to one. What cannot be seen raises `OSError`."""
        with self._call() as staging:
            return facts.kind(staging, paths.normalize(path, directory=True)) == "dir"

    def is_file(self, path: AnyPath) -> bool:
        """Whether there is a regular file, or a symbolic link to one. What cannot be seen raises `OSError`."""
        with self._call() as staging:
            return facts.kind(staging, paths.normalize(path, directory=True)) == "file"

    def stat(self, path: AnyPath, *, follow_symlinks: bool = True) -> FileStat:
        """Mode, size, time and owner of a file or directory, or of a link itself. Raises `OSError`."""
        with self._call() as staging:
            return facts.stat(staging, paths.normalize(path, directory=True), follow=follow_symlinks)

    def readlink(self, path: AnyPath) -> str:
        """The text of a symbolic link. Raises `OSError`, with EINVAL for anything else."""
        with self._call() as staging:
            return facts.readlink(staging, paths.normalize(path))

    def iterdir(self, path: AnyPath = ".") -> list[str]:
        """As `listdir`, the paths instead of the names."""
        with self._call() as staging:
            return facts.iterdir(staging, paths.normalize(path, directory=True))

    def walk(
        self, path: AnyPath = ".", *, exclude: Iterable[str | bytes] = ()
    ) -> list[tuple[str, list[str], list[str]]]:
        """Every directory from `path` down: its path, and the sorted names of the directories and files in it.

        Symbolic links are among the files, and not followed. `exclude` as for `glob`. Raises `OSError`.

        >>> tx.walk()
        [('.', [], ['a.txt', 'b.json'])]
        """
        with self._call() as staging:
            return facts.walk(staging, paths.normalize(path, directory=True), exclude)

    def version(self, path: AnyPath) -> str | None:
        """The version of a file: an opaque string that changes with every replacement; `None` for a missing file."""
        with self._call() as staging:
            return staging.version(staging.resolve(paths.normalize(path)))
