"""The digest of a content: BLAKE2b with 256 bits (RFC 7693), of a summary where the content is long.

It has to find what a power loss tore or lost, and what somebody else has put in the place. All of the first MiB goes
into it; of what follows, the CRC-32 of every MiB, because BLAKE2b takes several times as long as a disk needs to write.
A CRC-32 finds every burst of up to 32 wrong bits and misses one in 2^32 of all other errors, which is what ext4, xfs
and btrfs rely on for their own blocks.
"""

from __future__ import annotations

import _thread
import hashlib
import sys
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

WHOLE = 1 << 20
BLOCK = 1 << 20


def digest_of(data: bytes) -> str:
    """64 hex digits, of all of it."""
    digest = Digest()
    digest.update(data)
    return digest.hexdigest()


class Digest:
    """The digest of all that was given to `update`, in whatever pieces."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=32)
        self._size = 0
        self._crc = 0

    def update(self, data: bytes | memoryview) -> None:
        if self._size + len(data) <= WHOLE:
            self._hash.update(data)
            self._size += len(data)
            return
        rest = memoryview(data)
        if self._size < WHOLE:
            first = rest[: WHOLE - self._size]
            self._hash.update(first)
            self._size += len(first)
            rest = rest[len(first) :]
        while rest:
            part = rest[: BLOCK - self._size % BLOCK]
            self._crc = zlib.crc32(part, self._crc)
            self._size += len(part)
            rest = rest[len(part) :]
            if self._size % BLOCK == 0:
                self._hash.update(self._crc.to_bytes(4, "big"))
                self._crc = 0

    @contextmanager
    def updated_beside(self, data: bytes | memoryview) -> Iterator[None]:
        """`update` in another thread, beside a block that writes the data: both free the interpreter's lock."""
        done = _thread.allocate_lock()
        done.acquire()

        failed: list[BaseException] = []

        def update() -> None:
            try:
                self.update(data)
            except BaseException as error:
                failed.append(error)
            finally:
                done.release()

        try:
            if sys.is_finalizing():  # a thread would not come to its end
                update()
            else:
                _thread.start_new_thread(update, ())
        except RuntimeError:  # no more threads to be had, or the interpreter is about to end
            update()
        try:
            yield
        finally:
            done.acquire()
        if failed:
            raise failed[0]

    def hexdigest(self) -> str:
        """64 hex digits."""
        whole = self._hash
        if self._size > WHOLE and self._size % BLOCK:
            whole = whole.copy()
            whole.update(self._crc.to_bytes(4, "big"))
        return whole.hexdigest()
