"""The limits of one token leave capacity to others."""

from __future__ import annotations

from pathlib import Path

from tests.server.live import live

URL = "/v1/conversions"
WISH = {"source": "data/a", "target": "data/b"}


def test_streams_of_one_token_leave_some_to_others(tmp_path: Path) -> None:
    with (
        live(tmp_path, module="tests.server.idle", streams_per_token=1) as server,
        server.client("ann") as ann,
        server.client("bob") as bob,
    ):
        of_ann, of_bob = (c.post(URL, json=WISH).json()["id"] for c in (ann, bob))
        with ann.stream("GET", f"{URL}/{of_ann}/events") as first:
            assert first.status_code == 200
            refused = ann.get(f"{URL}/{of_ann}/events")
            assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
            assert refused.json()["detail"].startswith(
                "1 streams are open by the token 'ann', the most that one"
            )
            with bob.stream("GET", f"{URL}/{of_bob}/events") as other:
                assert other.status_code == 200
