"""Many updates in one commit: those who wait for one another share a transaction, each with a part of its own.

    G1  A group takes at most 64, in the order in which they came, and never waits for more.
    G2  What a function raises undoes its own part and reaches its own caller only; a failed commit reaches all.
    G3  Nobody returns before the outcome of its commit is known.

May know: transactions. Begin with `threads`; `tasks` is the same for an event loop.
"""
