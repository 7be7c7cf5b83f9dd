"""The commands, one at a time, and what a user sees of them.

May know: all that users import, and `_sync`. Begin with `options`, what may be said; `look`, `put` and `sync` are the
commands, each of which returns an `answer`. `output` and `progress` write to streams that may be closed or full.
"""
