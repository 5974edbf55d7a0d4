"""Compare a resent log with bronze's newest transaction, without a server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.pgoutput.framing import Block
from deltasmelt.bronze.store.position import Position, SentTransaction
from deltasmelt.bronze.stream.receiver import Batch
from deltasmelt.bronze.stream.replication import Keepalive
from deltasmelt.bronze.stream.same_log import LogComparison
from tests.bronze.wire import begin, commit, insert, message, plain_relation, truncate

START = datetime(2000, 1, 1, tzinfo=UTC)
"""Zero of PostgreSQL's clock."""

SENT = SentTransaction.of(Lsn(200), START + timedelta(microseconds=5))
MESSAGE = SentTransaction.of(Lsn(299), None)


def transaction(lsn: int, ts: int = 5) -> list[bytes]:
    return [begin(lsn, ts=ts), plain_relation(1, "t", ["id"]), insert(1, ["1"]), commit(lsn, ts=ts)]


def compared(
    *batches: list[bytes],
    confirmed: int = 100,
    sent: SentTransaction = SENT,
    until: int = 400,
    counts: frozenset[int] | None = None,
    newest: SentTransaction = SENT,
) -> LogComparison:
    """Compare batches of messages and a last keepalive with a bronze that ends at 0/190.

    With `counts` only transactions of these relations count; `sent` is bronze's newest transaction among
    them.
    """
    position = Position(Lsn(399), Lsn(400), 0, None, sent if counts is None else newest)
    comparison = LogComparison(position, sent, Lsn(confirmed), where="here", counts=counts)
    for messages in batches:
        comparison.take(Batch([Block.of(messages)]))
    if not comparison.complete:
        comparison.take(Batch([], keepalive=Keepalive(Lsn(until), START)))
    return comparison


@pytest.mark.parametrize(
    ("start", "batches", "confirmed", "sent"),
    [
        pytest.param(200, [transaction(200)], 100, SENT, id="the newest comes first"),
        pytest.param(200, [transaction(200)], 200, SENT, id="the slot stands at its commit record"),
        pytest.param(200, [transaction(200), transaction(416)], 100, SENT, id="the log has grown"),
        pytest.param(200, [transaction(200)[:2], transaction(200)[2:]], 100, SENT, id="cut in two"),
        pytest.param(201, [], 201, SENT, id="the slot lies after it"),
        pytest.param(201, [transaction(416)], 201, SENT, id="the slot lies after it, the log has grown"),
        pytest.param(
            100,
            [[*transaction(200), message("a", b"b", transactional=False, lsn=300)]],
            100,
            MESSAGE,
            id="the newest is a message outside of transactions",
        ),
    ],
)
def test_log_ending_with_newest_transaction_is_accepted(
    start: int, batches: list[list[bytes]], confirmed: int, sent: SentTransaction
) -> None:
    comparison = compared(*batches, confirmed=confirmed, sent=sent)
    assert comparison.start == start
    assert comparison.complete


@pytest.mark.parametrize(
    ("how", "batches", "confirmed", "sent"),
    [
        pytest.param("lacks", [], 100, SENT, id="nothing comes"),
        pytest.param("lacks", [transaction(416)], 100, SENT, id="only what is new comes"),
        pytest.param("another transaction at 0/C8", [transaction(200, ts=6)], 100, SENT, id="another time"),
        pytest.param("never received", [transaction(216)], 100, SENT, id="another comes instead"),
        pytest.param("never received", [transaction(200), transaction(300)], 100, SENT, id="one more"),
        pytest.param("never received", [transaction(300)], 201, SENT, id="one after the slot"),
        pytest.param("lacks", [transaction(200)], 100, MESSAGE, id="the message is missing"),
        pytest.param("another", [transaction(299)], 100, MESSAGE, id="a transaction in the message's place"),
        pytest.param(
            "never received",
            [[*transaction(200), message("a", b"b", transactional=False, lsn=300)]],
            100,
            SENT,
            id="a message more",
        ),
    ],
)
def test_any_other_log_is_refused(
    how: str, batches: list[list[bytes]], confirmed: int, sent: SentTransaction
) -> None:
    with pytest.raises(DefiniteError, match=how) as caught:
        compared(*batches, confirmed=confirmed, sent=sent)
    assert caught.value.code == "server-history-differs"


def test_decision_waits_for_everything_server_sends() -> None:
    comparison = compared(transaction(200), until=399)
    assert not comparison.complete
    assert comparison.reached == Lsn(399)


OTHER = [begin(300), plain_relation(2, "u", ["id"]), insert(2, ["1"]), commit(300)]
BOTH = [*OTHER[:3], *transaction(300)[1:]]
TRUNCATED = [begin(300), truncate([3, 1]), commit(300)]


@pytest.mark.parametrize(
    "batches", [[transaction(200)], [transaction(200), OTHER], [transaction(200), OTHER[:2], OTHER[2:]]]
)
def test_transaction_of_recopied_tables_proves_nothing(batches: list[list[bytes]]) -> None:
    newest = SentTransaction.of(Lsn(300), START)
    for confirmed in (100, 201):
        sent = SENT if confirmed <= SENT.lsn else SentTransaction(Lsn(confirmed - 1), 0)
        later = batches[confirmed > SENT.lsn :]
        assert compared(*later, confirmed=confirmed, sent=sent, counts=frozenset({1}), newest=newest).complete


@pytest.mark.parametrize(
    ("how", "batches"),
    [
        pytest.param("lacks", [OTHER], id="the newest of those that count is missing"),
        pytest.param("never received", [transaction(200), BOTH], id="a change of both"),
        pytest.param("never received", [transaction(200), BOTH[:3], BOTH[3:]], id="cut before what counts"),
        pytest.param("never received", [transaction(200), TRUNCATED], id="truncated with another"),
        pytest.param(
            "never received",
            [transaction(200), [message("a", b"b", transactional=False, lsn=300)]],
            id="a message after bronze's newest",
        ),
    ],
)
def test_relevant_changes_are_compared_within_unproven_transactions(
    how: str, batches: list[list[bytes]]
) -> None:
    """Changes needed by bronze are compared even inside transactions that prove nothing."""
    with pytest.raises(DefiniteError, match=how):
        compared(*batches, counts=frozenset({1}))


def test_a_message_that_is_the_evidence_counts() -> None:
    log = [*transaction(200), message("a", b"b", transactional=False, lsn=300)]
    for newest in (MESSAGE, SentTransaction.of(Lsn(350), START)):
        assert compared(log, sent=MESSAGE, counts=frozenset({1}), newest=newest).complete
    with pytest.raises(DefiniteError, match="lacks"):
        compared(transaction(200), sent=MESSAGE, counts=frozenset({1}), newest=MESSAGE)


def test_earlier_message_may_leave_no_row() -> None:
    """A message before bronze's newest transaction may leave no row."""
    newest = SentTransaction.of(Lsn(350), START)
    log = [*transaction(200), message("a", b"b", transactional=False, lsn=300)]
    assert compared(log, counts=frozenset({1}), newest=newest).complete
