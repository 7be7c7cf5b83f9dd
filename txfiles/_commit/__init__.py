"""The protocol: how a staged change becomes the state of a root, and how recovery ends one that was cut off.

May know: `_tree`. Begin with the head of `protocol`: the guarantee, the invariants, the decision table. `home` is an
open root, `durable` the sync rounds, `evidence` what the disk says about a transaction, `inventory` what lies in the
private directory, `recover` the decisions, `two_phase` the wait for somebody else's.
A second protocol goes through a log of many transactions: `logfile` is the file, `log_commit` the commit (its
invariants are at its head), `checkpoint` its end, `restore` what is put in place from the records, `log_recovery` the
decisions, `log_look` what is seen of it without the lock. `levels` says which of the two a transaction goes by, `idle`
ends a log that nobody commits to.
"""
