"""How long bronze waits, for what, and why that long: one value, handed in with the source's settings.

No key of a pipeline file sets it (`bronze.config.sections.SourceSettings.timing`): the values follow from how
PostgreSQL and networks behave, not from a pipeline. Tests hand in one with shorter times.

Here stands every time that two places must agree on or that a test shortens. Times of one algorithm in one
place stay there: the polls of a socket, what `until_stopped` gives a cancelled statement, the lock under
which a size is measured. So do thresholds of findings, which wait for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LEASE_SECONDS: Final = 60.0
"""How long a lease of a lake in an object store (`bronze.lake.leases`) holds, where nothing else is said."""
LEASE_SECONDS_IN_CATALOGS: Final = 120.0
"""The same in a catalog, where a statement of Spark renews it, which waits for other statements' tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds, each for one kind of wait.

    Reader:
        first_contact: for a server that never answered since the start; later than that it is most likely a
            wrong address.
        refused: for a server that let us in before and refuses us now, as while a password is changed. With a
            target, also for copies that are refused or held up.
        failing: with a target, through failures that follow each other while nothing gets on.
        retry_first: after the first failure that heals; most are over at once.
        retry_longest: after later ones, twice as long each time; a server that is down costs little then.
        report: between two reports of progress; a person looks at them.
        target_poll: longest wait for messages while a position is waited for; then the server is asked.

    Looks at tables:
        look: between two when nothing asks for one. Also the first pause of a table that failed.
        longest_pause: of a table that fails again and again, twice as long each time.
        look_answer: for all the server says in one look, locks included; after it the line is taken for dead.
            Also for each answer to a command that reads the catalog, as of many tables.
        look_shapes: for shapes of quiet tables that one look records; the next look goes on.
        shape_lock: while a group of these tables is locked, as by a query, beside any wait for the lock.
        look_news: between two questions whether something asks for a look; they cost no query.
        look_marks: between two reads of the marks that other processes set in the lake.
        look_joining: between two while tables wait for transactions, which may end at any moment.
        watch: between two queries of the catalog's fingerprint; they are cheap, and silver waits for them.
        watch_slot: between two reads of the slot's room; its rate shows over some seconds only.
        watch_answer: for either; a living server answers in milliseconds.

    Copies:
        wait_notice: until it is said for which transactions a slot waits, and between two times that it is.
        copy_plan: for shapes and sizes of all tables of a group; many partitions take minutes.
        copy_lookout: for who waits for our locks, or for whom we wait; queries of pg_locks, without a lock.
        copy_command: for savepoints and the like between two chunks, beside any wait for a lock.
        copy_poll: for rows, before it is looked whether to stop.
        copy_silence: without a row, before the server is asked what the backend waits for.
        executors_silence: of executors, until they count as not to be had. A cluster may take minutes to
            give one; meanwhile no other table is copied, and while ranges are, the server keeps the snapshot.

    Locks of copies:
        group_locks: for the locks of a group, all together; what is not had then fails alone.
        brief_lock: for one of them before the others are tried.
        partition_lock: for a partition that is locked when it is read, or an index that somebody recreates.

    Publication:
        publication_lock: for the publication's own lock, which each statement on it needs.
        members_lock: for the locks of several tables together; some are held meanwhile.
        member_lock: for the lock of one table; an autovacuum lets go after deadlock_timeout, one second.
        members_in_parts: while tables are added in parts at one look; what is left waits for a later one.

    Slot:
        slot_release: for the walsender of a reader that was killed, which holds the slot for some seconds.
        slot_transactions: for running transactions to end while the slot is made.
        slot_poll: between two looks whether the slot is free.
        reader_silence: of the reader that a walsender serves, before that is ended; a living one answers
            every `feedback` seconds.
        walsender_end: for a walsender to go, after its time is over.

    Server:
        answer: for each answer for which nothing else is said; a command of ours takes seconds at most.
        session_settings: for the settings of a new session, two round trips.
        client_check: between two looks of a working or waiting backend whether we are still there. Without
            them one whose client was killed while it waits for a lock waits on, with all that it holds.
        command_poll: for the answer of a walsender, before it is looked whether to give up.
        cancel: for a server to take a cancel request, over a connection of its own.

    Stream:
        feedback: between two status updates at most; well within any `wal_sender_timeout` in use.
        line_silence: of the server, before it is looked at from outside; it is asked after a third.
        last_words: for the reason why a stream ended that had just been started.
    """

    first_contact: float = 20.0
    refused: float = 600.0
    failing: float = 600.0
    retry_first: float = 0.2
    retry_longest: float = 30.0
    report: float = 0.5
    target_poll: float = 0.1

    look: float = 30.0
    longest_pause: float = 600.0
    look_answer: float = 300.0
    look_shapes: float = 20.0
    shape_lock: float = 3.0
    look_news: float = 0.2
    look_marks: float = 2.0
    look_joining: float = 1.0
    watch: float = 1.0
    watch_slot: float = 5.0
    watch_answer: float = 20.0

    wait_notice: float = 3.0
    copy_plan: float = 300.0
    copy_lookout: float = 30.0
    copy_command: float = 60.0
    copy_poll: float = 0.5
    copy_silence: float = 30.0
    executors_silence: float = 600.0

    group_locks: float = 20.0
    brief_lock: float = 0.2
    partition_lock: float = 20.0

    publication_lock: float = 30.0
    members_lock: float = 5.0
    member_lock: float = 2.0
    members_in_parts: float = 30.0

    slot_release: float = 15.0
    slot_transactions: float = 600.0
    slot_poll: float = 0.25
    reader_silence: float = 15.0
    walsender_end: float = 5.0

    answer: float = 120.0
    session_settings: float = 10.0
    client_check: float = 10.0
    command_poll: float = 0.2
    cancel: float = 5.0

    feedback: float = 1.0
    line_silence: float = 30.0
    last_words: float = 5.0
