"""Make the files of one place equal to those of another: list both, compare, stage the difference.

May know: a transaction. Begin with `sides`, all that a place has to offer, and `engine`; `plan` compares two
listings, `folder` is a directory on disk as a source, `target` a transaction, `excludes` what is left alone, `overlap`
refuses a tree that would be copied into itself.
"""
