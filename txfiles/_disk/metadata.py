"""Mode, owner, group and extended attributes: read from a file, made up for a new one, put on a token.

A POSIX ACL is the extended attribute `system.posix_acl_access`; its mask is the group part of the mode (acl(5)).
"""

from __future__ import annotations

import errno
import stat
import struct
from typing import TYPE_CHECKING

from txfiles._disk.system import give
from txfiles._format.journal import Meta

if TYPE_CHECKING:
    from txfiles._disk.system import FileSystem, Stat

ACCESS_ACL = "system.posix_acl_access"
DEFAULT_ACL = "system.posix_acl_default"
_ENTRY = struct.Struct("<HHI")  # tag, permissions, id
_USER_OBJ, _GROUP_OBJ, _MASK, _OTHER = 0x01, 0x04, 0x10, 0x20


def has_acl(meta: Meta) -> bool:
    """Whether more than the mode decides who may do what."""
    return any(name == ACCESS_ACL for name, _ in meta.xattrs)


def read(fs: FileSystem, at: int, name: bytes, found: Stat) -> Meta:
    """The metadata of `name`, whose `stat` is `found`."""
    xattrs = fs.xattrs(at, name)
    attributes = tuple(sorted(xattrs.items())) if xattrs else ()
    return Meta(found.st_mode & 0o7777, found.st_uid, found.st_gid, attributes)


def for_new(
    fs: FileSystem, at: int, parent: bytes, directory: Stat, *, is_dir: bool = False, mode: int | None = None
) -> Meta:
    """What `open` or `mkdir`, called with `mode`, would give a new entry of `parent` (`directory` is its stat).

    The group is inherited from a setgid directory; a default ACL replaces the umask (acl(5), mkdir(2)).
    """
    uid, gid = fs.ids()
    if mode is None:
        mode = 0o777 if is_dir else 0o666
    if directory.st_mode & stat.S_ISGID:
        gid = directory.st_gid
        mode |= stat.S_ISGID if is_dir else 0
    default = fs.xattrs(at, parent).get(DEFAULT_ACL)
    if default is None:
        return Meta(mode & ~fs.umask(at, parent), uid, gid)
    permissions, access = _inherit(default, mode)
    xattrs = {} if access is None else {ACCESS_ACL: access}
    if is_dir:
        xattrs[DEFAULT_ACL] = default
    return Meta(mode & ~0o777 | permissions, uid, gid, tuple(sorted(xattrs.items())))


def _inherit(default: bytes, mode: int) -> tuple[int, bytes | None]:
    """Mode and access ACL of a file made under a default ACL; no ACL where the mode says the same."""
    entries = list(_ENTRY.iter_unpack(default[4:]))
    tags = {tag for tag, _, _ in entries}
    shift = {_USER_OBJ: 6, _MASK if _MASK in tags else _GROUP_OBJ: 3, _OTHER: 0}
    permissions, out = 0, default[:4]
    for tag, bits, who in entries:
        if tag in shift:
            bits &= mode >> shift[tag] & 7
            permissions |= bits << shift[tag]
        out += _ENTRY.pack(tag, bits, who)
    return permissions, None if tags == {_USER_OBJ, _GROUP_OBJ, _OTHER} else out


def with_mode(meta: Meta, mode: int) -> Meta:
    """What chmod(2) makes of it: the mode, and in an ACL the entries that the mode is about (acl(5))."""
    xattrs = dict(meta.xattrs)
    if ACCESS_ACL in xattrs:
        xattrs[ACCESS_ACL] = _with_mode(xattrs[ACCESS_ACL], mode)
    return meta._replace(mode=mode, xattrs=tuple(sorted(xattrs.items())))


def _with_mode(acl: bytes, mode: int) -> bytes:
    entries = list(_ENTRY.iter_unpack(acl[4:]))
    tags = {tag for tag, _, _ in entries}
    shift = {_USER_OBJ: 6, _MASK if _MASK in tags else _GROUP_OBJ: 3, _OTHER: 0}
    packed = (_ENTRY.pack(tag, mode >> shift[tag] & 7 if tag in shift else bits, who) for tag, bits, who in entries)
    return acl[:4] + b"".join(packed)


def apply(fs: FileSystem, fd: int, now: Stat, wanted: Meta) -> Meta:
    """Put `wanted` on a file that only its owner can read so far and whose stat is `now`; returns what it has then.

    Where the caller may not give the file away, it stays the caller's, and nobody gains access by that: a group
    that could not be kept leaves its permissions behind, and set-id bits go.
    """
    mode, uid, gid = wanted.mode, now.st_uid, now.st_gid
    if (uid, gid) != (wanted.uid, wanted.gid):
        uid, gid = _give(fs, fd, wanted, uid, gid)
        if gid != wanted.gid:
            mode &= ~(0o070 & ~(mode << 3))
        if (uid, gid) != (wanted.uid, wanted.gid):
            mode &= 0o1777
    kept = []
    for key, value in wanted.xattrs:
        if key == ACCESS_ACL and gid != wanted.gid:
            continue
        try:
            fs.set_xattr(fd, key, value)
        except OSError as error:
            if not key.startswith(("security.", "trusted.")) or error.errno not in (errno.EPERM, errno.ENOTSUP):
                raise
            continue  # labels that only the system may set; it sets its own
        kept.append((key, value))
    if now.st_mode & 0o7777 != mode or kept:
        fs.chmod(fd, mode)  # last: chown clears set-id bits, an ACL sets the group part
    has = mode, uid, gid, tuple(kept)
    return wanted if has == wanted else Meta(*has)


def _give(fs: FileSystem, fd: int, wanted: Meta, uid: int, gid: int) -> tuple[int, int]:
    for owner, group in ((wanted.uid, wanted.gid), (uid, wanted.gid)):
        if give(fs, fd, owner, group):
            return owner, group
    return uid, gid


def matches(fs: FileSystem, at: int, name: bytes, found: Stat, wanted: Meta) -> bool:
    """Whether `name` has the mode, owner, group and (at least) the extended attributes of `wanted`."""
    if (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) != (wanted.mode, wanted.uid, wanted.gid):
        return False
    if not wanted.xattrs:
        return True
    has = fs.xattrs(at, name)
    return all(has.get(key) == value for key, value in wanted.xattrs)
