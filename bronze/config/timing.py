"""All waits of bronze, each with its reason: one value, passed with the source's settings.

No key of a pipeline file sets a wait (`bronze.config.sections.SourceSettings.timing`): the values follow from
the behaviour of PostgreSQL and networks. Tests pass a value with shorter waits.

This value has every wait that two modules must agree on or that a test shortens. A wait of one algorithm in
one module stays in the module: the polls of a socket, the time that `until_stopped` gives a cancelled
statement, the lock under which a size is measured. Thresholds of findings are no waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# The default duration of a lease of a lake in an object store (`bronze.lake.leases`).
LEASE_SECONDS: Final = 60.0
# Longer in a catalog: the Spark statement that renews a lease waits for other tasks.
LEASE_SECONDS_IN_CATALOGS: Final = 120.0

# Seconds between commits to a lake in an object store, unless the file sets an interval: a store charges for
# each request.
FLUSH_INTERVAL_IN_STORES: Final = 5.0
# Seconds between commits to a lake in a catalog, where each commit is a statement of Spark.
FLUSH_INTERVAL_IN_CATALOGS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Waits in seconds.

    Reader:
        first_contact: for a server that never answered since the start; after this time the address is most
            likely wrong.
        refused: for a server that admitted the reader before and now refuses, as while a password is changed.
            With a target, also for copies that are refused or held up.
        failing: with a target, for a row of failures without progress.
        retry_first: after the first failure that heals; most such failures end at once.
        retry_longest: bound of the later pauses, each twice as long; keeps the load low while a server is
            down.
        report: between two reports of progress, for people.
        target_poll: longest wait for messages while the caller waits for a position; then a query to the
            server follows.

    Catalog polls of tables:
        catalog_poll: between two polls without a request. Also the first pause of a table that failed.
        longest_pause: bound of the pauses of a table that fails repeatedly, each twice as long.
        poll_answer: for all answers of the server in one poll, locks included; then the connection counts as
            dead. Also for each answer to a command that reads the catalog, as of many tables.
        poll_shapes: for shapes of quiet tables that one poll records; the next poll continues.
        shape_lock: while a group of these tables is locked as by a query, in addition to any wait for the
            lock.
        poll_news: between two checks whether a poll was requested; the checks cost no query.
        poll_marks: between two reads of the marks that other processes set in the lake.
        poll_joining: between two polls while tables wait for transactions, which may end at any moment.
        watch: between two queries of the catalog's fingerprint; the query is cheap, and silver waits for it.
        watch_slot: between two reads of the slot's room; only some seconds show the rate.
        watch_answer: for an answer to a fingerprint or slot query; a living server answers in milliseconds.

    Copies:
        wait_notice: until a message names the transactions that a slot waits for, and between two such
            messages.
        copy_plan: for shapes and sizes of all tables of a group; many partitions take minutes.
        copy_lookout: for queries of pg_locks about sessions that wait for the copy's locks, and sessions that
            the copy waits for; the queries take no lock.
        copy_command: for savepoints and similar commands between two chunks, in addition to any wait for a
            lock.
        copy_poll: for rows, between two checks for a stop.
        copy_silence: without a row, before a query reads the backend's wait event.
        executors_silence: without an answer of executors, until the reader gives them up. A cluster may take
            minutes to provide an executor. Meanwhile no other table is copied, and while ranges are, the
            server keeps the snapshot.

    Locks of copies:
        group_locks: for all locks of a group together; a table without its lock then fails alone. Also for
            other transactions, while a snapshot is only renewed.
        brief_lock: for one lock before the copy tries the next table.
        partition_lock: for a partition that is locked during the read, or an index that a session recreates.

    Publication:
        publication_lock: for the publication's own lock, which each statement on the publication needs.
        members_lock: for the locks of several tables together; some locks are held meanwhile.
        member_lock: for the lock of one table; an autovacuum releases its lock after deadlock_timeout, one
            second.
        members_in_parts: while tables are added in parts at one poll; a later poll adds the rest.

    Slot:
        slot_release: for the walsender of a killed reader, which holds the slot for some seconds.
        slot_transactions: for running transactions to end while the slot is created.
        slot_poll: between two checks whether the slot is free.
        reader_silence: without an answer of the reader that a walsender serves, before the walsender is
            ended; a living reader answers every `feedback` seconds.
        walsender_end: for a walsender to end after its time is over.

    Server:
        answer: for each answer without a special wait; a command of deltasmelt takes seconds at most.
        session_settings: for the settings of a new session, two round trips.
        client_check: between two checks of a working or waiting backend whether the client exists. Without
            the checks a backend whose client was killed during a wait for a lock waits on, with all its
            locks.
        command_poll: for the answer of a walsender, between two checks for a stop.
        cancel: for a server to accept a cancel request, over a separate connection.

    Stream:
        feedback: between two status updates at most; well within any usual `wal_sender_timeout`.
        line_silence: without a message, before another session checks the server; a reply is requested after
            a third.
        last_words: for the reason why a stream ended directly after its start.
    """

    first_contact: float = 20.0
    refused: float = 600.0
    failing: float = 600.0
    retry_first: float = 0.2
    retry_longest: float = 30.0
    report: float = 0.5
    target_poll: float = 0.1

    catalog_poll: float = 30.0
    longest_pause: float = 600.0
    poll_answer: float = 300.0
    poll_shapes: float = 20.0
    shape_lock: float = 3.0
    poll_news: float = 0.2
    poll_marks: float = 2.0
    poll_joining: float = 1.0
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
