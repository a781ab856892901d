"""What a front has heard, as it is kept in etcd while Redis is away."""

from __future__ import annotations

from scheduler.domain.record import Record


class HeardPage(Record):
    """`/pulses/{front}/{page}`: some of the nodes that a front has heard, and for how long it has listened.

    All times are of the front's own monotonic clock: a reader sets its own against it, and
    never another machine's wall clock.
    """

    run_id: str
    """New at each start of the front: the clock of another run means nothing."""
    clock_ms: int
    """The front's clock when this was written."""
    listening_ms: int = -1
    """How long it had listened without a gap by then; less than 0: it does not listen."""
    nodes: tuple[str, ...] = ()
    ages_ms: tuple[int, ...] = ()
    """How long ago each of these nodes was heard, by then."""
