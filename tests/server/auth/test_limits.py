"""Slots: a total limit, a limit per token, and no token waits because of another token's limit."""

from __future__ import annotations

import asyncio

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
    for stream in opened:
        stream.give_back()
    assert streams.open == 1
