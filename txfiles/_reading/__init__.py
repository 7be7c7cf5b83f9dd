"""One committed state of a root, read without the lock and beside writers.

May know: `_commit`, to tell what is under way and to recover what is dead. Begin with `reader`; `lookout` is its look
at the private directory, `overlay` makes a commit under way look finished or not begun, `question` is what is asked;
`records` is the log beside a reader, `resting` is the short way to small files while nobody writes.
"""
