"""What a commit would change, for people and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from txfiles._format import paths

if TYPE_CHECKING:
    from txfiles._format.journal import Operation

Kind = Literal["create", "replace", "delete", "mkdir", "rmdir"]


class Change(NamedTuple):
    """One path that changes: `size` is that of the new content in bytes, `link` the text of a new symbolic link."""

    kind: Kind
    path: str
    size: int | None = None
    link: str | None = None

    def __str__(self) -> str:
        if self.link is not None:
            return f"{self.kind} {self.path} -> {self.link}"
        return f"{self.kind} {self.path}" + ("" if self.size is None else f" ({self.size} bytes)")


class Plan(tuple[Change, ...]):
    """The changes in the order in which they would be made; as text a line for each."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self))


def change_of(op: Operation) -> Change:
    path = paths.decode(op.name)
    if op.kind != "write":
        return Change(op.kind, path)
    assert op.new is not None
    kind: Kind = "create" if op.old is None else "replace"
    if op.new.link is not None:
        return Change(kind, path, link=paths.decode(op.new.link))
    return Change(kind, path, op.new.size)
