"""The tree under a root, and the staged view of it.

May know: `_disk`. Begin with `tree`, paths walked one component at a time; `view` lays entries over it, `tokens` holds
new content in the private directory, `staging` puts the two together and plans what a commit has to do. `subtrees` is
what touches many paths, `streams` are file objects.
"""
