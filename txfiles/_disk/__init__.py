"""The boundary to the operating system. Nothing above it makes a system call on the tree.

May know: `_format`. Begin with `system`, the table of calls that `txfiles.testing` replaces by a simulation; `rounds`
and `fsyncs` sync many files at once, `lock` and `lockfile` are the writers' lock, `metadata` is what a file has besides
its content.
"""
