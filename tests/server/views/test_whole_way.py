"""The real server and its clients: a view is stored, loaded by both faces while training goes on, and deleted."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from reshard_server.client import Client
from safetensors.numpy import load

from reshard.errors import ReshardError
from tests.server.live import Live, live
from tests.server.tokens import TOKENS, bearer
from tests.server.views.run import FILE, MAP, file_of, save_step


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("views")
    save_step(folder / "data" / "run", 1)
    with live(folder, waits={"reshard_server.views.recorded.LOOK_SECONDS": 0}) as found:
        yield found


def test_the_client_stores_a_view_and_programs_read_it(server: Live) -> None:
    run = server.log.parent / "data" / "run"
    with Client(server.url, TOKENS["ann"][0]) as client:
        client.maps.put("hf", MAP)
        made = client.views.put("llama", "data/run", step="latest", map="hf", drop=["bias"])
        assert (made.version, made.view["map"]) == (1, MAP)
        assert [view.name for view in client.views.each()] == ["llama"]
        assert [view.version for view in client.views.each_version("llama")] == [1]
        assert client.views.get("llama").view == made.view
        content = file_of(run / "1", map=MAP, drop=["bias"])
        with httpx.Client(base_url=server.url, headers=bearer("eve")) as http:
            model = http.get("/hf/api/models/views/llama/revision/main").json()
            place = f"/hf/views/llama/resolve/{model['sha']}/{FILE}"
            assert http.get(place).content == content
            part = http.get(place, headers={"Range": "bytes=8-15"})
            assert (part.status_code, part.content) == (206, content[8:16])
            save_step(run, 2)
            again = http.get("/hf/api/models/views/llama/revision/main").json()
            assert again["sha"] != model["sha"]
            assert load(http.get(place).content)["model.weight"].shape == (6, 4)
            assert httpx.get(server.url + place).status_code == 401
        client.views.delete("llama")
        with pytest.raises(ReshardError, match="there is no view 'llama'"):
            client.views.get("llama")
