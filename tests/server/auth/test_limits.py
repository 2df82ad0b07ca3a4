"""Slots: a total limit, a limit per token, and no token waits because of another token's limit."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest
from reshard_server.auth.limits import Slots, Streams
from reshard_server.errors.problems import ProblemError


def test_one_token_leaves_places_to_others() -> None:
    slots = Slots(3, 2)
    assert [slots.take_now(token) for token in ("ann", "ann", "ann", "bob", "bob")] == [
        True, True, False, True, False,
    ]  # fmt: skip
    assert (slots.taken, slots.of("ann"), slots.of("bob")) == (3, 2, 1)
    slots.give_back("ann")
    assert slots.take_now("bob")


def test_who_waits_passes_a_token_that_has_enough() -> None:
    async def scene() -> list[str]:
        slots, order = Slots(3, 2), list[str]()
        for token in ("ann", "ann", "cid"):
            assert slots.take_now(token)

        async def wait(name: str, token: str) -> None:
            await slots.take(token)
            order.append(name)

        waiting = [
            asyncio.create_task(wait(f"{token}{n}", token))
            for n, token in enumerate(("ann", "ann", "bob", "bob", "bob"))
        ]
        await asyncio.sleep(0)
        for token in ("cid", "ann", "bob", "ann", "bob"):  # each place that becomes free
            slots.give_back(token)
            await asyncio.sleep(0.01)
        await asyncio.gather(*waiting)
        assert slots.taken == 3
        return order

    assert asyncio.run(scene()) == ["bob2", "ann0", "bob3", "ann1", "bob4"]


def test_who_waits_no_longer_takes_no_place() -> None:
    async def scene() -> None:
        slots = Slots(1, 1)
        await slots.take("ann")
        gone, patient = (asyncio.create_task(slots.take(token)) for token in ("bob", "cid"))
        await asyncio.sleep(0)
        slots.give_back("ann")  # bob has it now
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        await asyncio.wait_for(patient, 30)
        assert (slots.taken, slots.of("cid")) == (1, 1)

    asyncio.run(scene())


def test_no_slot_is_given_to_a_waiter_that_leaves_in_the_same_turn() -> None:
    """Neither the request that gives back nor the slot suffers."""

    async def scene() -> None:
        slots = Slots(1, 1)
        await slots.take("ann")
        leaves, stays = (asyncio.create_task(slots.take("ann")) for _ in range(2))
        await asyncio.sleep(0)
        leaves.cancel()
        slots.give_back("ann")
        await asyncio.wait_for(stays, 30)
        assert leaves.cancelled()
        slots.give_back("ann")
        assert slots.taken == 0

    asyncio.run(scene())


@pytest.mark.parametrize("seed", range(8))
def test_no_slot_is_lost_while_waiters_come_and_go(seed: int) -> None:
    async def scene() -> None:
        draw, slots = random.Random(seed), Slots(3, 2)

        async def ask(token: str) -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(draw.choice((0, 0.0005, 0.002))):
                    await slots.take(token)
                try:
                    await asyncio.sleep(draw.choice((0, 0.0005)))
                finally:
                    slots.give_back(token)

        asked = [asyncio.create_task(ask(draw.choice("abc"))) for _ in range(100)]
        await asyncio.sleep(0)
        for leaves in draw.sample(asked, 40):
            leaves.cancel()
            await asyncio.sleep(0)
        outcomes = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
        assert {type(outcome) for outcome in outcomes} <= {type(None), asyncio.CancelledError}
        assert slots.taken == 0
        assert all(slots.take_now(token) for token in "abc")

    asyncio.run(scene())


def test_a_refusal_says_whose_limit_it_is() -> None:
    streams = Streams(Slots(3, 2))
    opened = [streams.take("ann") for _ in range(2)]
    with pytest.raises(ProblemError) as own:
        streams.take("ann")
    assert own.value.detail == (
        "2 streams are open by the token 'ann', the most that one token may have at this server (its setting "
        "streams_per_token); try again later, or poll with If-None-Match"
    )
    assert (own.value.kind.status, own.value.headers["Retry-After"]) == (429, "5")
    streams.take("bob")
    with pytest.raises(ProblemError) as all_of_them:
        streams.take("cid")
    assert all_of_them.value.detail == (
        "3 streams are open, the most that this server allows for all tokens together (its setting streams); try again "
        "later, or poll with If-None-Match"
    )
    for give_back in opened:
        give_back()
    assert streams.open == 1
