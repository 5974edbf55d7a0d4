"""Options of the JVM that a local session starts with."""

from __future__ import annotations

import pytest

from pipelines.session import jvm_options


@pytest.mark.parametrize("brief", [False, True])
def test_a_collector_of_the_users_own_is_the_only_one(*, brief: bool) -> None:
    given = "-Dx=y -XX:+UseG1GC"
    options = jvm_options(given, brief=brief)
    assert options.endswith(given)
    assert options.count("GC") == 1


@pytest.mark.parametrize("brief", [False, True])
def test_without_one_there_is_ours(*, brief: bool) -> None:
    assert jvm_options("-Dx=y", brief=brief).count("GC") == 1
