"""Inspect, verify and fingerprint: the objects of the commands, in the client's words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from reshard_server.api.openapi.description import FINGERPRINT, INSPECTION, VERIFICATION

import reshard
from reshard.answers.record import answer_of
from tests.server.served import Served

URL = "/v1/checkpoints"
STREAM = {"Accept": "text/event-stream"}


def ask(served: Served, verb: str, who: str = "ann", **body: Any) -> Any:
    return served.ask("POST", f"{URL}:{verb}", who, json={"checkpoint": "data/run/1", **body})


def damage(checkpoint: Path) -> None:
    file = next(p for p in checkpoint.glob("params.kernel/**/*") if p.stat().st_size > 8000)
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)


def without_record(checkpoint: Path) -> None:
    for file in checkpoint.rglob("slices.json"):
        file.unlink()


def test_inspected(served: Served, run_of: Path) -> None:
    answer = ask(served, "inspect", "eve")
    assert answer.status_code == 200
    found = answer.json()
    INSPECTION.model_validate(found)
    expected = json.loads(json.dumps(answer_of("inspect", reshard.inspect(run_of / "1"))))
    assert found == {**expected, "uri": "data/run/1"}


def test_verified_with_its_own_record(served: Served, run_of: Path) -> None:
    good = ask(served, "verify", "eve").json()
    VERIFICATION.model_validate(good)
    assert (good["a"], good["b"], good["equal"], good["differences"]) == ("data/run/1", None, True, 0)  # fmt: skip
    damage(run_of / "1")
    answer = ask(served, "verify", "eve", max_memory="64MiB")
    assert answer.status_code == 200
    bad = answer.json()
    assert (bad["equal"], bad["differences"]) == (False, 1)
    (tensor,) = [t for t in bad["tensors"] if t["name"] == "params/kernel"]
    assert tensor["status"] in ("different", "damaged")
    assert str(run_of.parent) not in answer.text


def test_verified_with_another(served: Served, run_of: Path) -> None:
    found = ask(served, "verify", other="data/run/2").json()
    assert (found["b"], found["equal"]) == ("data/run/2", True)
    assert {t["status"] for t in found["tensors"]} == {"equal"}
    damage(run_of / "2")
    assert ask(served, "verify", other="data/run/2").json()["differences"] > 0


def test_verified_by_rules(served: Served, run_of: Path) -> None:
    rules: dict[str, Any] = {"select": ["^params/"], "rename": [["^params/", ""]], "cast": [["kernel$", "float16"]]}  # fmt: skip
    reshard.convert(run_of / "1", run_of / "9", **rules)
    recorded = ask(served, "verify", other="data/run/9").json()
    VERIFICATION.model_validate(recorded)
    assert (recorded["equal"], recorded["dropped"]) == (True, ["step"])
    assert recorded["rules"] == {"from": "recorded", "drop": [], **rules}
    kinds = {t["name"]: (t["source"], t["comparison"]) for t in recorded["tensors"]}
    assert kinds == {"bias": ("params/bias", "exact"), "kernel": ("params/kernel", "cast")}
    given = ask(served, "verify", other="data/run/9", **rules).json()
    assert (given["equal"], given["rules"]["from"]) == (True, "given")
    assert ask(served, "verify", other="data/run/9", drop=["step"]).json()["differences"] > 0
    turned = ask(served, "verify", checkpoint="data/run/9", other="data/run/1").json()
    assert "reshard verify data/run/1 data/run/9 compares them" in turned["warnings"][0]


@pytest.mark.usefixtures("run_of")
@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"other": "data/run/2", "select": ["("]}, "/select", "'(' is no regular expression"),
        ({"other": "data/run/2", "cast": [["x", "float7"]]}, "/cast", "no such dtype"),
        ({"other": "data/run/2", "drop": ["^nothing"]}, None, "'^nothing' matches none of the 3 names"),
        ({"select": ["^params/"]}, None, "but there is no B; name it, or leave them out"),
    ],
)  # fmt: skip
def test_rules_that_make_no_sense(
    served: Served, body: dict[str, Any], field: str | None, words: str
) -> None:
    answer = ask(served, "verify", **body)
    problem = answer.json()
    assert (answer.status_code, problem.get("field")) == (422, field)
    assert words in problem["detail"]


def test_given_a_record(served: Served, run_of: Path) -> None:
    without_record(run_of / "1")
    assert ask(served, "verify").json()["tensors"][0]["status"] in ("not recorded", "checksum")
    answer = ask(served, "fingerprint", "ann")
    assert answer.status_code == 200, answer.text
    found = answer.json()
    FINGERPRINT.model_validate(found)
    assert (found["uri"], found["written"]) == ("data/run/1", ["data/run/1/slices.json"])
    assert ask(served, "verify").json()["equal"] is True
    again = ask(served, "fingerprint")
    assert (again.status_code, again.json()["type"]) == (409, "urn:reshard:problem:target-exists")
    assert ask(served, "fingerprint", overwrite=True).status_code == 200


@pytest.mark.usefixtures("run_of")
def test_a_record_needs_the_scope_and_the_root(served: Served, tmp_path: Path) -> None:
    scope = ask(served, "fingerprint", "eve", overwrite=True)
    assert (scope.status_code, scope.json()["detail"]) == (
        403,
        "the token 'eve' lacks the scope 'convert'; ask for one that has it",
    )
    (tmp_path / "data" / "run" / "1").rename(tmp_path / "other" / "1")
    there = ask(served, "inspect", "bob", checkpoint="other/1")
    assert there.status_code == 200
    root = ask(served, "fingerprint", "bob", checkpoint="other/1", overwrite=True)
    assert (root.status_code, root.json()["field"]) == (404, "/checkpoint")


@pytest.mark.parametrize(
    ("checkpoint", "status", "kind", "words"),
    [
        ("data/run/9", 404, "not-found", "there is nothing at 'data/run/9'"),
        ("other/run", 404, "not-found", "there is nothing at 'other/run'"),
        ("data/out", 404, "not-found", "there is nothing at 'data/out'"),
        ("data/run", 422, "not-a-checkpoint", "name one of them: data/run/2"),
        ("data/file", 422, "not-a-checkpoint", "data/file is not a checkpoint of a known format"),
        ("data/torn", 422, "checkpoint", "data/torn"),
        ("data/x|ocdbt:", 422, "invalid-request", "it has the character '|'"),
        ("data/.x.reshard-partial", 422, "checkpoint", "data/.x.reshard-partial is unfinished output"),
        ({"driver": "zarr"}, 422, "invalid-request", "/checkpoint: expected text, found an object"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_about(
    served: Served, run_of: Path, checkpoint: Any, status: int, kind: str, words: str
) -> None:  # fmt: skip
    data = run_of.parent
    (data / "out").symlink_to(data.parent / "other")
    (data / "file").write_text("x")
    (data / "torn").mkdir()
    (data / "torn" / "_METADATA").write_text('{"tree_metadata": 7')
    (data / ".x.reshard-partial").mkdir()
    is_reserved = str(checkpoint).endswith("partial")  # where nobody may record anything
    for verb in ("inspect", "verify", *([] if is_reserved else ["fingerprint"])):
        answer = ask(served, verb, checkpoint=checkpoint)
        found = answer.json()
        assert (answer.status_code, found["type"]) == (status, f"urn:reshard:problem:{kind}"), found
        assert words in found["detail"]
        assert str(data.parent) not in answer.text


@pytest.mark.usefixtures("run_of")
def test_limits_are_the_servers(served: Served) -> None:
    for wish, words in (("1TiB", "above this server's ceiling"), ("much", "max_memory")):
        answer = ask(served, "verify", max_memory=wish)
        assert (answer.status_code, words in answer.json()["detail"]) == (422, True)
    small = ask(served, "verify", max_memory=1)
    assert small.json()["type"] == "urn:reshard:problem:memory-budget"
    assert small.json()["smallest_bytes"] > 1


def events(answer: Any) -> list[tuple[str, Any]]:
    """Kind and document of each event; a comment is sent where there is nothing to tell for a while."""
    texts = answer.text.strip().split("\n\n")
    blocks = [text.split("\n") for text in texts if not text.startswith(":")]
    return [
        (kind.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
        for kind, data in blocks
    ]


@pytest.mark.usefixtures("run_of")
@pytest.mark.parametrize("verb", ["verify", "fingerprint"])
def test_watched(served: Served, verb: str) -> None:
    more = {"overwrite": True} if verb == "fingerprint" else {}
    body = {"checkpoint": "data/run/1", **more}
    answer = served.ask("POST", f"{URL}:{verb}", json=body, headers=STREAM)
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    *before, (kind, last) = events(answer)
    assert {k for k, _ in before} == {"progress"}
    assert before[0][1]["total_bytes"] > 0
    assert (kind, last["command"]) == ("answer", verb)
    refused = {"checkpoint": "data/run", **more}
    answer = served.ask("POST", f"{URL}:{verb}", json=refused, headers=STREAM)
    ((kind, problem),) = events(answer)
    assert (kind, problem["status"]) == ("problem", 422)
    assert "name one of them: data/run/2" in problem["detail"]
    early = served.ask("POST", f"{URL}:{verb}", json={"checkpoint": "data/no"}, headers=STREAM)
    assert early.status_code == 404
    assert served.app.state.services.streams.open == 0
