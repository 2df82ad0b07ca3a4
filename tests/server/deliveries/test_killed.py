"""SIGKILL of the server while a delivery is under way: the next server makes it again."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import reshard
from tests.server.asking import converted
from tests.server.deliveries.receiver import receiving, secrets_file
from tests.server.live import live
from tests.server.waiting import until

WAITS = {"reshard_server.db.deliveries.CLAIM_SECONDS": 1.0}


def test_a_server_that_is_killed_loses_no_delivery(tmp_path: Path) -> None:
    folder = tmp_path / "served"
    reshard.save(folder / "data" / "run", {"kernel": np.arange(12, dtype=np.float32)})
    settings = {
        "notify_secrets_file": str(secrets_file(tmp_path)),
        "notify_private": ["127.0.0.0/8"],
    }
    with receiving() as receiver:
        wish = {"source": "data/run", "target": "data/out", "notify": [f"{receiver.url}/slow"]}
        with live(folder, waits=WAITS, **settings) as first, first.client() as client:
            made = converted(client, **wish)
            receiver.first("/slow")
            first.process.kill()
            first.process.wait(60)
        receiver.released.set()
        with live(folder, waits=WAITS, **settings) as second, second.client() as client:
            until(lambda: len(receiver.arrived) == 2, 30)
            path = f"/v1/conversions/{made['id']}/deliveries"
            until(lambda: client.get(path).json()["deliveries"][0]["state"] == "delivered")
            line = second.line(lambda found: found["message"] == "notified")
            assert (line["host"], line["tries"], line["state"]) == ("127.0.0.1", 2, "delivered")
            assert receiver.url not in second.log.read_text()
        one, two = receiver.arrived
        assert one.body == two.body
        assert one.headers["webhook-id"] == two.headers["webhook-id"] == one.event["id"]
        assert two.headers["webhook-signature"].split(" ") == two.signatures()
