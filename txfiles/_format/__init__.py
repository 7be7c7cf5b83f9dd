"""Bytes and names on disk: what is written, and what may be read back. Pure functions, no system call.

May know: `errors`. Begin with `layout`, every name in the private directory, then `journal`, every byte of a journal.
`paths` is what a caller may say, `digest` how a content is recognised, `json` how documents are written.
"""
