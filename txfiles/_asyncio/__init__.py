"""The thread behind each asynchronous transaction, and what its tasks hold of it.

May know: `_disk`, for the lock's owners, and no transaction: that comes from above. Begin with `worker`; `tasks` is how
a task waits for it, `file` and `snapshot` are the twins of file objects and snapshots.
"""
