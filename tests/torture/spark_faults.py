"""Faults in the calls of the code that runs on Spark: its statements, and the control tables.

A cycle, a maintenance or a rebuild affects the world by two kinds of calls: statements, each a read or a
commit, and the methods of `ControlTables`. A run without faults counts these calls. In each later run one
call, chosen by its number, fails before or after its effect. Then the work continues, either with equal
objects, as a continuous run continues after a temporary error, or with new objects, as after a kill.
"""

from __future__ import annotations

import itertools
import random
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from pyspark.sql import SparkSession

from deltasmelt.bronze.lake.control_tables import ControlTables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONTROL: Final = (
    "record_cut",
    "record_runs",
    "open_error",
    "close_errors",
    "expire_cuts",
    "tidy",
    "latest_cut",
)
KINDS: Final = ("before", "after")


class FaultError(RuntimeError):
    """An error of a store or a network that deltasmelt's rules do not know."""


@dataclass(frozen=True, slots=True)
class Case:
    """A fault.

    Attributes:
        call: number of the failing call, from 0.
        kind: ``before`` or ``after`` the effect of the call.
        restart: whether new objects continue, as in a new process.
    """

    call: int
    kind: str
    restart: bool

    def __str__(self) -> str:
        return f"{self.kind} call {self.call}, {'restarted' if self.restart else 'the same process'}"


def cases(calls: int, number: int, seed: int) -> list[Case]:
    """Return a random sample of all cases, or all cases if fewer, in the order of their calls."""
    every = [Case(*parameters) for parameters in itertools.product(range(calls), KINDS, (False, True))]
    chosen = every if number >= len(every) else random.Random(seed).sample(every, number)
    return sorted(chosen, key=lambda case: case.call)


@dataclass
class Doors:
    """A counter of a block's calls that makes a single call fail.

    Attributes:
        names: names of the calls so far, in order.
        hit: name of the call that failed.
    """

    case: Case | None = None
    names: list[str] = field(default_factory=list)
    hit: str | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def open(self) -> Iterator[Doors]:
        """Count every call within the block."""
        with ExitStack() as stack:
            owners: list[tuple[type, str]] = [(SparkSession, "sql")]
            owners += [(ControlTables, name) for name in CONTROL]
            for owner, name in owners:
                stack.enter_context(patch.object(owner, name, self._wrapped(getattr(owner, name), name)))
            yield self

    def _wrapped(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(one: Any, *args: Any, **named: Any) -> Any:
            label = " ".join(str(args[0]).split())[:60] if name == "sql" else name
            with self._lock:
                failing = self.case is not None and len(self.names) == self.case.call
                self.names.append(label)
            if failing and self.case is not None:
                self.hit = label
                if self.case.kind == "before":
                    raise FaultError("the store did not answer")
                original(one, *args, **named)
                raise FaultError("the store's answer was lost")
            return original(one, *args, **named)

        return call


@dataclass
class Tried:
    """Work that is tried under faults.

    Attributes:
        prepare: creates work, without faults.
        run: does the work; may raise the error of a fault.
        recover: continues without faults and checks; the argument says whether in a new process.
    """

    prepare: Callable[[], None]
    run: Callable[[], object]
    recover: Callable[[bool], None]


def enumerate_faults(tried: Tried, *, number: int, seed: int) -> list[str]:
    """Run once without a fault, then once for each case of a sample; return the failures."""
    tried.prepare()
    with Doors().open() as doors:
        tried.run()
    wrong, reached = [], 0
    for case in cases(len(doors.names), number, seed):
        tried.prepare()
        with Doors(case).open() as faulty:
            try:
                tried.run()
            except FaultError:
                pass
            except Exception as error:  # noqa: BLE001 - reported with its case
                wrong.append(f"{case} ({faulty.hit}): {type(error).__name__}: {str(error)[:300]}")
        reached += faulty.hit is not None
        try:
            tried.recover(case.restart)
        except (AssertionError, Exception) as error:  # noqa: BLE001 - reported with its case
            wrong.append(f"{case} ({faulty.hit}): afterwards {type(error).__name__}: {str(error)[:600]}")
    assert reached > number // 2, f"only {reached} of {number} faults happened"
    return wrong
