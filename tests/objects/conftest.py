"""Warm up what stays for the rest of the run: obstore's threads and their descriptors."""

from __future__ import annotations

import obstore
from obstore.store import MemoryStore

obstore.put(MemoryStore(), "warm", b"up")
