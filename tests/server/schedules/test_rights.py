"""A schedule runs with the rights that its token has now, and pauses itself if the token lost them."""

from __future__ import annotations

from typing import Any

import pytest
from reshard_server.auth.tokens import ANYONE, Tokens
from reshard_server.errors.problems import ProblemError
from reshard_server.schedules.loop import run_now

from tests.server.schedules.bench import Bench, write_step
from tests.server.schedules.nightly import NIGHT, NIGHTLY

WHO = "the token 'ann', which made this schedule"


@pytest.fixture(autouse=True)
def _one_step(bench: Bench) -> None:
    (bench.data / "run").mkdir()
    write_step(bench.data / "run", 1)


CHANGES: list[tuple[dict[str, Any], str]] = [
    (
        {},
        f"{WHO}, no longer exists or has expired; make a token of this name again, or delete the schedule and store it with another token",
    ),
    (
        {"scopes": frozenset({"read"})},
        f"{WHO}, lacks the scope 'convert' now; give it back, or delete the schedule and store it with another token",
    ),
    (
        {"read": frozenset({"other"})},
        f"{WHO}: there is nothing at 'data/run' that this token may use; check root and path",
    ),
    (
        {"write": frozenset({"other"})},
        f"{WHO}: there is nothing at 'data/out/1' that this token may use; check root and path",
    ),
]


@pytest.mark.parametrize(("change", "why"), CHANGES)
def test_rights_that_are_gone_pause_it(bench: Bench, change: dict[str, Any], why: str) -> None:
    bench.put()
    later = bench.without_tokens(*([] if change else ["ann"]), ann=change)
    bench.tick(process=later)
    bench.tick(process=later)
    assert bench.get().paused
    [seen] = bench.runs()
    assert (seen.outcome, seen.detail) == ("paused", why)
    assert (bench.wakes, bench.held()) == (0, [])
    with pytest.raises(ProblemError) as caught:
        run_now(later, bench.get(), 1, 4e9)
    assert caught.value.detail == f"the schedule 's' is paused: {why}"
    assert caught.value.kind.status == 409


def test_it_goes_on_with_the_same_rights(bench: Bench) -> None:
    bench.put()
    bench.tick(process=bench.without_tokens("bob", "eve"))
    assert bench.told() == {"1": "started"}


@pytest.mark.parametrize("change", [change for change, _ in CHANGES])
def test_by_the_clock_as_well(bench: Bench, change: dict[str, Any]) -> None:
    bench.put(now=NIGHT - 1, **NIGHTLY)
    bench.tick(NIGHT, bench.without_tokens(*([] if change else ["ann"]), ann=change))
    assert bench.get().paused
    assert [r.outcome for r in bench.runs()] == ["paused"]
    assert bench.wakes == 0


def test_the_scopes_of_another_token_do_not_help(bench: Bench) -> None:
    """What it needs is looked up by the name of the token that made it."""
    bench.put()
    assert bench.without_tokens("ann").tokens.named("ann") is None
    assert Tokens((), insecure=True).named("ann") is None
    assert Tokens((), insecure=True).named("anyone") is ANYONE
    assert Tokens(()).named("anyone") is None


def test_what_a_run_cannot_do_is_refused(bench: Bench) -> None:
    """The server's ceiling was lowered since."""
    bench.put(max_memory="512MiB")
    bench.tick(process=bench.process("one", max_memory=64 << 20))
    [seen] = bench.runs()
    assert seen.outcome == "refused"
    assert seen.detail == (
        "max_memory is 536870912 bytes, above this server's ceiling of 67108864 (its setting max_memory); ask for at "
        "most that, or leave it out"
    )
    assert not bench.get().paused
    assert run_now(bench.one, bench.get(), 1, 4e9).outcome == "started"
