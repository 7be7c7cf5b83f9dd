"""All documents of one program: their names, their values, and what is to be written of them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any

from txfiles._documents.document import Document, Kind
from txfiles._documents.members import Staged
from txfiles._documents.patterns import Pattern
from txfiles.errors import DocumentError, DocumentVersionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from txfiles._documents.codecs import Codec

    Files = Mapping[str, bytes | None]
    """The content of the file of each name; `None` for one that is missing."""


class Family:
    """Documents with a name each, and open sets of them.

    Raises `DocumentError` for a default that cannot be written, `InvalidPathError`, `TypeError` and `ValueError`.
    """

    def __init__(self, documents: Mapping[str, Any], codec: Codec | None) -> None:
        kinds = [Kind(name, Document.of(given), codec) for name, given in documents.items()]
        self.names = [kind.name for kind in kinds]
        self.single = {kind.name: kind for kind in kinds if not kind.is_pattern}
        files = sorted(self.files())
        if len(set(files)) != len(files):
            raise ValueError(f"two names lead to one file: {files}")
        self.sets = {kind.name: (kind, Pattern(kind.file, files)) for kind in kinds if kind.is_pattern}
        for (_, one), (_, other) in combinations(self.sets.values(), 2):
            if one.overlaps(other):
                raise ValueError(f"two patterns have files in common: {one.text!r} and {other.text!r}")

    def staged(self) -> dict[str, Staged]:
        return {name: Staged(kind, pattern) for name, (kind, pattern) in self.sets.items()}

    def files(self) -> list[str]:
        """Of all documents that are no sets."""
        return [kind.file for kind in self.single.values()]

    def require_known(self, names: Iterable[object]) -> None:
        if unknown := set(names) - set(self.names):
            raise ValueError(f"no such document: {', '.join(sorted(map(str, unknown)))}")

    def ordered(self, documents: Mapping[str, Any]) -> dict[str, Any]:
        return {name: documents[name] for name in self.names}

    # -- bytes to values ----------------------------------------------------------------------------------------

    def read(self, files: Files) -> tuple[dict[str, Any], bool]:
        """The documents that are no sets, and whether any file is of an older version. Raises `DocumentError`."""
        found = {name: kind.read(files[name], kind.file) for name, kind in self.single.items()}
        return {name: value for name, (value, _) in found.items()}, any(is_old for _, is_old in found.values())

    def read_set(self, name: str, files: Mapping[str, bytes]) -> tuple[dict[str, Any], bool]:
        """The same for a set, of the content of each of its files by path."""
        kind, pattern = self.sets[name]
        found = {pattern.key_of(path): kind.read(data, path) for path, data in files.items()}
        return {str(key): value for key, (value, _) in found.items()}, any(is_old for _, is_old in found.values())

    def damage(self, name: str, path: str, data: bytes) -> DocumentError | None:
        """What is wrong with the content of a file. Raises `DocumentVersionError`: that is no damage."""
        try:
            self.kind(name).read(data, path)
        except DocumentVersionError:
            raise
        except DocumentError as error:
            return error
        return None

    def kind(self, name: str) -> Kind:
        return self.sets[name][0] if name in self.sets else self.single[name]

    # -- values to bytes ----------------------------------------------------------------------------------------

    def writes(self, documents: Mapping[str, Any]) -> dict[str, bytes]:
        """The files for these documents and what is to be in them. Raises `ValueError` and `DocumentError`."""
        self.require_known(documents)
        if sets := documents.keys() & self.sets.keys():
            message = f"{', '.join(sorted(sets))}: a set of documents is changed by edit() or through collection()"
            raise ValueError(message)
        kinds = [(self.single[name], value) for name, value in documents.items()]
        return {kind.file: kind.write(value, kind.file) for kind, value in kinds}

    def changes(
        self, documents: Mapping[str, Any], files: Files, sets: Mapping[str, Any]
    ) -> Iterator[tuple[str, bytes]]:
        """What an edit changed: files and what is to be in them. Raises `ValueError` and `DocumentError`."""
        self.require_known(documents)
        if missing := set(self.names) - documents.keys():
            raise ValueError(f"documents cannot be removed: {', '.join(sorted(missing))}")
        for name, given in sets.items():
            if documents[name] is not given:
                raise ValueError(f"{name!r} is a set of documents: change what is in it")
        for name, kind in self.single.items():
            if kind.differs(documents[name], files[name], kind.file):
                yield kind.file, kind.write(documents[name], kind.file, files[name])
