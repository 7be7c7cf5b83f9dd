"""Helpers of the tests, most of them for faults on real systems: mounts, loop images, system call injection, kills."""

import os

DEEP = os.environ.get("TXFILES_DEEP", "0") not in ("", "0")
"""Whether this is the deep run: more examples, more seeds, more rounds."""
