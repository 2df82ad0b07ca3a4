"""Sabotages of deliveries: what tells each end at least once, and keeps the server from addresses that are not public."""

from __future__ import annotations

from tests.sabotage.sabotage import Sabotage

TESTS = "tests/server/deliveries"

SABOTAGES = (
    Sabotage(
        "delivery-connects-by-name",
        "a name that changes its meaning leads to an address that was not checked",
        "server/reshard_server/deliveries/post.py",
        "                    str(address), port,",
        "                    host, port,",
        (f"{TESTS}/test_receivers.py::test_a_name_is_looked_up_once_and_the_address_pinned",),
    ),
    Sabotage(
        "delivery-unchecked",
        "a name may lead to an address that is not public",
        "server/reshard_server/deliveries/post.py",
        "[check_address(settings, receiver, one) for one in found]",
        "found",
        (f"{TESTS}/test_receivers.py::test_one_private_address_among_public_ones_is_enough",),
    ),
    Sabotage(
        "delivery-claim-without-end",
        "a delivery of a process that died is never made again",
        "server/reshard_server/db/deliveries.py",
        '"free_again": now + CLAIM_SECONDS',
        '"free_again": now + 1e9',
        (f"{TESTS}/test_killed.py::test_a_server_that_is_killed_loses_no_delivery",),
    ),
    Sabotage(
        "slow-host-takes-all",
        "a slow receiver takes all places",
        "server/reshard_server/deliveries/loop.py",
        "if number >= most]",
        "if number >= 1000 * most]",
        (f"{TESTS}/test_deliveries.py::test_a_slow_receiver_delays_no_other",),
    ),
    Sabotage(
        "signed-without-time",
        "an old message can be sent again as a new one",
        "server/reshard_server/deliveries/messages.py",
        'b"%b.%d.%b" % (event.encode(), seconds, body)',
        'b"%b.%d.%b" % (event.encode(), 0, body)',
        (f"{TESTS}/test_deliveries.py::test_an_event_is_a_signed_cloud_event",),
    ),
)
