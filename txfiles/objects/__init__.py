"""The second engine: the same transactions on object storage.

One object, `HEAD`, is the state; it is replaced by a conditional PUT, everything else is immutable. Begin with `root`,
what a process knows of one root, then `commit`. May know: `_tree`, `_disk`,
`_format`. obstore is imported by `requests` alone, when it is used.
"""
