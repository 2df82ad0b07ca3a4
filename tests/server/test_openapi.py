"""The API's description: valid, complete, and true of a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from openapi_spec_validator import validate
from reshard_server.app import create_app
from reshard_server.errors.problems import MEDIA_TYPE
from reshard_server.settings import Settings

from tests.server.live import live
from tests.server.tokens import bearer

SECONDS = 500
"""After which Schemathesis is given up; it takes some 5 on an idle machine."""

LINTER = Path(__file__).parents[2] / ".oracles/openapi/node_modules/@redocly/cli/bin/cli.js"

WITHOUT_TOKEN = {"/livez", "/readyz"}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(Settings()).openapi()


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(path, op) for path, item in document["paths"].items() for op in item.values()]


def test_it_is_valid(document: dict[str, Any]) -> None:
    validate(document)
    assert document["openapi"].startswith("3.1")


def test_a_linter_has_nothing_to_say(document: dict[str, Any], tmp_path: Path) -> None:
    assert LINTER.exists(), f"{LINTER} is missing: run make oracles"
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    done = subprocess.run(
        [
            Path(sys.executable).parent / "node", LINTER, "lint", "openapi.json",
            "--extends", "recommended-strict", "--format", "stylish",
        ],
        check=False, capture_output=True, text=True, cwd=tmp_path, timeout=SECONDS,
        env=os.environ | {"REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Your API description is valid" in done.stdout + done.stderr


def test_every_operation_has_a_name_a_text_and_a_described_tag(document: dict[str, Any]) -> None:
    names = [op["operationId"] for _, op in operations(document)]
    assert len(set(names)) == len(names) > 5
    described = {tag["name"] for tag in document["tags"] if tag["description"]}
    for _, op in operations(document):
        assert op["operationId"].isidentifier()
        assert op["description"] and op["summary"]
        assert op["tags"] and set(op["tags"]) <= described
    assert described == {tag for _, op in operations(document) for tag in op["tags"]}


def test_every_operation_tells_its_problems(document: dict[str, Any]) -> None:
    for path, op in operations(document):
        expected = {"400", "413", "431", "500"}
        expected |= set() if path in WITHOUT_TOKEN else {"401", "403", "429"}
        expected |= {"404", "422"} if "{" in path else set()
        assert expected <= set(op["responses"]), path
        for status, response in op["responses"].items():
            assert "X-Request-Id" in response["headers"]
            if status >= "400":
                content = response["content"][MEDIA_TYPE]
                assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
                for example in content["examples"].values():
                    assert example["value"]["status"] == int(status)
                    assert example["value"]["type"].startswith("urn:reshard:problem:")
    assert "HTTPValidationError" not in str(document)


def test_everything_but_health_needs_a_token(document: dict[str, Any]) -> None:
    free = {path for path, op in operations(document) if not op.get("security")}
    assert free == WITHOUT_TOKEN


def test_every_request_body_has_examples_that_are_valid(document: dict[str, Any]) -> None:
    bodies = [op["requestBody"] for _, op in operations(document) if "requestBody" in op]
    assert bodies
    for body in bodies:
        assert body["content"]["application/json"]["examples"]


def without_events(url: str) -> dict[str, Any]:
    """The description, without the schema of streams: Schemathesis holds each event to it, and not the text."""
    document: dict[str, Any] = httpx.get(f"{url}/openapi.json", timeout=120).json()
    for _, op in operations(document):
        for response in op["responses"].values():
            response.get("content", {}).get("text/event-stream", {}).pop("schema", None)
    return document


def unordered(document: Any) -> Any:
    """The description without the order of lists: typing keeps unions by their members, in the order in which one was made first."""
    if isinstance(document, dict):
        return {key: unordered(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return sorted(
            (unordered(one) for one in document), key=lambda one: json.dumps(one, sort_keys=True)
        )
    return document


PHASES = "examples,fuzzing"
EVERY_PHASE = f"{PHASES},coverage,stateful"


@pytest.mark.parametrize(
    ("phases", "examples"),
    [(PHASES, 2), pytest.param(EVERY_PHASE, 10, marks=pytest.mark.campaign)],
)
def test_schemathesis_finds_nothing(tmp_path: Path, phases: str, examples: int) -> None:
    # what is accepted also depends on what is stored, so valid input may be refused
    with live(tmp_path, requests_per_minute=10**6, header_bytes=1_000_000) as server:
        told = httpx.get(f"{server.url}/openapi.json", timeout=120).json()
        assert unordered(told) == unordered(create_app(Settings()).openapi())
        (tmp_path / "data" / "a").mkdir()
        (tmp_path / "openapi.json").write_text(json.dumps(without_events(server.url)))
        done = subprocess.run(
            [
                Path(sys.executable).parent / "schemathesis", "run", "openapi.json", "--url", server.url,
                "-H", f"Authorization: {bearer('root')['Authorization']}", "--checks", "all",
                "--exclude-checks", "positive_data_acceptance", "--max-examples", str(examples), "--seed", "7",
                "--no-shrink", "--phases", phases, "--continue-on-failure", "--request-timeout", "60",
                "--suppress-health-check", "all",
            ],
            check=False, capture_output=True, text=True, cwd=tmp_path, timeout=SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
        assert f"Tested: {len(operations(create_app(Settings()).openapi()))}" in done.stdout
        assert not [line for line in server.lines() if line["level"] == "error"]


def test_generators_of_clients_can_use_it(document: dict[str, Any]) -> None:
    """What ``make clients`` shows at length: named bodies, streams as text, and answers without what code cannot hold."""
    schemas = document["components"]["schemas"]
    for path, op in operations(document):
        body = op.get("requestBody", {}).get("content", {}).get("application/json", {})
        assert not body or "$ref" in body["schema"], path
        for status, response in op["responses"].items():
            content = response.get("content", {})
            if "text/event-stream" in content:
                assert content["text/event-stream"]["schema"]["type"] == "string"
            schema = content.get("application/json", {}).get("schema", {})
            if status < "300" and path.startswith("/v1/") and "$ref" in schema:
                assert "required" not in schemas[schema["$ref"].rpartition("/")[2]], path
    assert {name for name, schema in schemas.items() if "cast" in schema.get("properties", {})} == {
        "OneDelta", "OneTarget", "PlanRequest", "TargetRequest", "VerifyRequest", "ViewRules",
    }  # fmt: skip
    assert not [name for name in schemas if name.startswith("Body")]
    assert {} not in [
        media.get("schema") for _, op in operations(document) for answer in op["responses"].values() for media in answer.get("content", {}).values()
    ]  # fmt: skip
