"""The boundary to the operating system as the measured revision has it, for `compare` also 0.1.0."""

from __future__ import annotations

try:
    from txfiles._disk import rounds, system
except ImportError:  # before the package had rooms
    from txfiles import _fs as system  # type: ignore[no-redef]
    from txfiles import _rounds as rounds  # type: ignore[no-redef]

__all__ = ["rounds", "system"]
