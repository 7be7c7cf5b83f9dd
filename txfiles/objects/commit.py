"""The commit: one conditional PUT of `HEAD`, and what follows when its answer is no answer.

An attempt is the bytes of a new `HEAD` and the token of the old one. Its id is in the bytes, so that `HEAD` itself
tells whether it took effect:

- our id is there: committed;
- the token is still the one that was sent: the same bytes with the same token again;
- neither: the attempt is dead for good, for its token never comes back. Validate against the new state, try again.

A 412 or 409 is no verdict: the request, or a copy of it, may have met its own effect.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from txfiles.errors import CommitError, CommitOutcomeUnknownError, LockTimeoutError, RecoveryError, TxFilesError
from txfiles.objects import settle, tree, upload
from txfiles.objects import state as _state
from txfiles.objects.keeper import Known
from txfiles.objects.read import Reading
from txfiles.objects.requests import Denied, Raced, RequestError
from txfiles.objects.state import HEAD, State
from txfiles.objects.tree import Pack
from txfiles.objects.turn import CYCLE, Turn
from txfiles.objects.wait import Backoff, os_error

if TYPE_CHECKING:
    from txfiles.objects.change import Change
    from txfiles.objects.content import Content
    from txfiles.objects.keeper import Keeper
    from txfiles.objects.requests import Body, Token

T = TypeVar("T")

MOMENT = 0.001  # seconds
MOMENTS = 4


class Ticket:
    """A transaction on its way into `HEAD`."""

    def __init__(self, change: Change, since: float, timeout: float | None) -> None:
        self.change = change
        self.since = since
        self.until: float = math.inf if timeout is None else since + timeout
        self.woken: threading.Event = threading.Event()
        self.done = False
        self.again = False  # its packs are below the floor: upload them once more
        self.failure: BaseException | None = None  # if it failed for good
        self.trouble: BaseException | None = None  # what the store failed last


@dataclass
class Attempt:
    """A `HEAD` that may have been sent."""

    base: Known
    state: State
    raw: bytes
    tickets: list[Ticket]
    ids: list[str] = field(default_factory=list)
    unsure: bool = False  # a request of it may have taken effect, or still may


class Committer:
    """Commits the transactions of one process on one root; those that wait go into one `HEAD` together.

    Whoever is free leads: it does one step, a request for all, until its own transaction is done, and hands over.
    """

    def __init__(self, root: Keeper) -> None:
        self._root = root
        self._mutex = threading.Lock()
        self._queue: list[Ticket] = []
        self._leading = False
        self._doubt: Attempt | None = None
        self._backoff = Backoff(root.source.clock)
        self._together = 0  # transactions in the last HEAD
        self._turn = Turn(root.source.clock, lambda: root.refresh().state)

    # -- the queue ----------------------------------------------------------------------------------------------

    def commit(self, change: Change, timeout: float | None) -> None:
        """Commit; raises what `FileTransaction.commit` raises."""
        ticket = Ticket(change, self._root.source.clock.now(), timeout)
        while True:
            upload.contents(self._root, change, ticket.until)
            try:
                self._run(ticket)
            except BaseException as error:
                if not isinstance(error, Exception) and self._withdraw(ticket):
                    error.add_note(f"txfiles: whether it is committed, recover(root, {change.tid!r}) tells")
                raise
            if not ticket.again:
                return
            ticket.done = ticket.again = False

    def _run(self, ticket: Ticket) -> None:
        clock = self._root.source.clock
        with self._mutex:
            self._queue.append(ticket)
        while True:
            with self._mutex:
                if ticket.done:
                    break
                leads, self._leading = not self._leading, True
                ticket.woken.clear()
            if leads:
                try:
                    self._step(ticket)
                    while not ticket.done and clock.now() < ticket.until:
                        self._step(ticket)
                finally:
                    self._hand_over()
            else:
                clock.wait(ticket.woken, ticket.until - clock.now())
            if not ticket.done and clock.now() >= ticket.until:
                in_doubt = self._withdraw(ticket)
                if not ticket.done:
                    raise self._too_late(ticket, in_doubt)
        if ticket.failure is not None:
            raise ticket.failure

    def _hand_over(self) -> None:
        with self._mutex:
            self._leading = False
            waiting = self._doubt.tickets if self._doubt is not None and self._doubt.tickets else self._queue
            if waiting:
                waiting[0].woken.set()

    def _withdraw(self, ticket: Ticket) -> bool:
        """Take a transaction out; whether it may be committed all the same."""
        with self._mutex:
            if ticket in self._queue:
                self._queue.remove(ticket)
            if self._doubt is not None and ticket in self._doubt.tickets:
                self._doubt.tickets.remove(ticket)
                return True
            return False

    def _too_late(self, ticket: Ticket, in_doubt: bool) -> TxFilesError:
        tid, shown = ticket.change.tid, self._root.shown
        error: TxFilesError
        if in_doubt:
            error = CommitOutcomeUnknownError(
                f"{shown}: no answer in time; whether it is committed, recover(root, {tid!r}) tells", path=shown
            )
            error.transaction_id = tid
        elif ticket.trouble is not None:
            error = CommitError(f"nothing was changed: the store failed: {ticket.trouble}", path=shown)
        else:
            error = LockTimeoutError(f"other writers of {shown} were faster, for all of the timeout", path=shown)
        error.__cause__ = ticket.trouble
        return error

    def _finish(self, tickets: list[Ticket], failure: BaseException | None = None, *, again: bool = False) -> None:
        with self._mutex:
            for ticket in list(tickets):
                if ticket in self._queue:
                    self._queue.remove(ticket)
                ticket.failure, ticket.again, ticket.done = failure, again, True
                ticket.woken.set()

    def _trouble(self, tickets: list[Ticket], error: BaseException) -> None:
        for ticket in tickets:
            ticket.trouble = error

    # -- steps --------------------------------------------------------------------------------------------------

    def _step(self, leader: Ticket) -> None:
        """One attempt, or one look at what became of one."""
        if self._doubt is not None and not self._doubt.tickets:
            self._doubt = None  # nobody waits for it
        if self._doubt is None:
            self._attempt(leader)
        else:
            self._settle(self._doubt, leader)

    def _queued(self) -> list[Ticket]:
        with self._mutex:
            return list(self._queue)

    def _gather(self) -> None:
        """Wait for a moment for those who were in the last `HEAD`: they are about to come again."""
        for _ in range(MOMENTS if self._together > 1 else 0):
            with self._mutex:
                if len(self._queue) >= self._together:
                    return
            self._root.source.clock.pause(MOMENT)

    def _attempt(self, leader: Ticket) -> None:
        tickets = self._queued()
        try:
            begun = self._root.known() or self._root.refresh()
            self._turn.wait(begun.state, leader.until)
            self._gather()
            tickets, base = self._queued(), self._root.known() or begun
            attempt = self._build(base, tickets, leader.until)
        except (RecoveryError, FileNotFoundError) as error:
            if isinstance(error, RecoveryError):
                error.outcome = "before"
            self._finish(tickets, error)
            return
        except (OSError, RequestError) as error:
            self._trouble(tickets, error)
            self._backoff.pause(throttled=getattr(error, "throttled", False))
            return
        if attempt is not None:
            with self._mutex:
                if not all(ticket in self._queue for ticket in attempt.tickets):
                    return  # the time of one has ended, and it was told "before": again without it
                self._doubt = attempt
            self._send(attempt, leader)

    def _build(self, base: Known, tickets: list[Ticket], until: float) -> Attempt | None:
        """The next `HEAD`, with what it refers to uploaded; those that have lost end here."""
        pack = Pack(_state.new_name(base.state.seq))
        places: dict[Content, tuple[str, int]] = {}
        state, accepted = base.state, []
        for ticket in tickets:
            if any(self._below_floor(content, base.state) for content in ticket.change.contents()):
                self._finish([ticket], again=True)
                continue
            reading = Reading(self._root.source, state, self._root.newest)
            try:
                ticket.change.validate(reading)
                for content in ticket.change.contents():
                    if content.place is None:
                        places[content] = pack.name, pack.add(content.read())
                state = ticket.change.apply(reading, places)
            except (OSError, RequestError):
                raise
            except Exception as error:  # a conflict, or what `alter` refuses
                self._finish([ticket], error)
                continue
            accepted.append(ticket)
        if not accepted:
            return None
        ids = [ticket.change.tid for ticket in accepted]
        uploads: list[tuple[str, Body]] = []
        state = _state.successor(state, ids, waited=self._turn.waited())
        if len(state.recent) > _state.RECENT:
            state, block = settle.push_out(state, base.state.seq)
            uploads.append(block)
        full = len(state.delta) > _state.MAX_ENTRIES or any(ticket.change.flush for ticket in accepted)
        raw = b"" if full else _state.encode(state)
        if state.delta and (full or len(raw) > _state.MAX_SIZE):
            state = self._flush(state, pack)
            raw = _state.encode(state)
        if pack.size:
            uploads.append((f"pack/{pack.name}", b"".join(pack.pieces)))
        self._root.source.at_once(lambda one: upload.put(self._root, *one, until), uploads)
        for content, place in places.items():
            content.place = place
        return Attempt(base, state, raw, accepted, ids)

    def _below_floor(self, content: Content, state: State) -> bool:
        """gc may delete a pack below the floor: what nobody refers to yet has to be uploaded under a new name."""
        return content.place is not None and _state.seq_of(content.place[0]) < state.floor

    def _flush(self, state: State, pack: Pack) -> State:
        """Merge the delta into the tree: small contents and new nodes go into the pack."""
        changes = {}
        for path, entry in state.delta.items():
            if entry is not None and entry.data:
                entry = entry._replace(data=None, pack=pack.name, offset=pack.add(entry.data))
            changes[path] = entry
        reading = Reading(self._root.source, state, self._root.newest)
        root = tree.update(reading, state.root, changes, pack)
        for offset, node, length in pack.nodes:
            self._root.source.remember(pack.name, offset, node, length)
        return replace(state, root=root, delta={})

    def _send(self, attempt: Attempt, leader: Ticket) -> None:
        try:
            token = self._root.within(leader.until, lambda: self._put_head(attempt))
        except Raced:
            self._no_verdict(attempt)
        except Denied as error:
            if attempt.unsure:
                self._doubtful(attempt, error)
                return
            failure = CommitError(f"nothing was changed: {error}", path=self._root.shown)
            failure.__cause__ = os_error(self._root.shown, error)
            self._end(attempt, failure)
        except RequestError as error:
            self._doubtful(attempt, error)
        else:
            self._root.learn(Known(attempt.state, token))
            self._turn.won()
            self._together = len(attempt.tickets)
            self._end(attempt)

    def _no_verdict(self, attempt: Attempt) -> None:
        """Somebody was faster, or the request met its own effect: the next step looks, after a pause.

        The pause comes before the look, so that the next attempt goes by what was just seen.
        """
        self._turn.lost()
        self._backoff.pause(at_most=CYCLE)

    def _put_head(self, attempt: Attempt) -> Token:
        return self._root.source.requests.put(HEAD, attempt.raw, self._root.sent(attempt.base))

    def _doubtful(self, attempt: Attempt, error: RequestError) -> None:
        attempt.unsure = True
        self._trouble(attempt.tickets, error.cause or error)
        self._backoff.pause(throttled=getattr(error, "throttled", False))

    def _end(self, attempt: Attempt, failure: BaseException | None = None) -> None:
        self._doubt = None
        self._finish(attempt.tickets, failure)
        self._backoff = Backoff(self._root.source.clock)

    def _settle(self, attempt: Attempt, leader: Ticket) -> None:
        """Look what became of an attempt."""
        try:
            now = self._root.within(leader.until, self._root.refresh)
            committed = settle.is_committed(self._root.source, now.state, attempt.ids[-1], attempt.state.seq)
        except RecoveryError as error:
            self._end(attempt, error)
        except (OSError, RequestError) as error:
            self._trouble(attempt.tickets, error)
            self._backoff.pause(throttled=getattr(error, "throttled", False))
        else:
            if committed:
                self._turn.won()
                self._end(attempt)
            elif now.token == attempt.base.token:
                self._send(attempt, leader)
            else:
                self._doubt = None  # dead for good: its token never comes back
