"""The alerts: valid expressions, on metrics and labels that a real server really tells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.documents import DEPLOY, ROOT
from tests.server.live import live

pytestmark = pytest.mark.xdist_group("deploy")
FOLDER = DEPLOY / "prometheus"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
OF_PROMETHEUS = {"up"}
OF_THE_SCRAPE = {"job", "instance"}
ADDED_LATER = {"le"}


def selectors(expression: str) -> Iterator[promql_parser.VectorSelector]:
    """Every metric that an expression names."""
    found: list[promql_parser.VectorSelector] = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)

    promql_parser.walk(promql_parser.parse(expression), pre_visit=visit)
    yield from found


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of each sample that a server tells, after a request or two."""
    with live(tmp_path_factory.mktemp("alerts")) as server, server.client() as client:
        client.get("/v1/conversions")
        text = client.get("/metrics").text
    samples: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, set()).update(sample.labels)
    return samples


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_asks_for_what_is_told(rule: dict[str, Any], told: dict[str, set[str]]) -> None:
    named = list(selectors(rule["expr"]))
    assert named
    for selector in named:
        labels = {matcher.name for matcher in selector.matchers.matchers}
        assert "job" in labels
        if selector.name not in OF_PROMETHEUS:
            assert selector.name in told
            assert labels - OF_THE_SCRAPE <= told[selector.name]


def test_the_parser_finds_what_is_wrong() -> None:
    with pytest.raises(ValueError):
        promql_parser.parse("max(reshard_queue_depth > 0")
    assert [s.name for s in selectors("sum(rate(a_total[5m])) / on (x) (b > 0.5)")] == [
        "a_total",
        "b",
    ]


def test_states_that_are_named_exist() -> None:
    from reshard_server.observability.metrics import STATES

    named = {
        matcher.value
        for rule in RULES
        for selector in selectors(rule["expr"])
        for matcher in selector.matchers.matchers
        if matcher.name == "state"
    }
    assert named
    assert named <= set(STATES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_says_what_it_means(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert set(rule["annotations"]) == {"summary", "description"}
    assert rule["labels"]["severity"] in ("page", "ticket")
    page = ROOT / "docs" / "how-to" / "service" / "troubleshoot.md"
    assert f"| `{rule['alert']}` |" in page.read_text()


def test_prometheus_loads_them_for_this_job() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    assert [Path(f).name for f in config["rule_files"]] == ["alerts.yaml"]
    (scrape,) = config["scrape_configs"]
    jobs = {
        m.value
        for r in RULES
        for s in selectors(r["expr"])
        for m in s.matchers.matchers
        if m.name == "job"
    }
    assert jobs == {scrape["job_name"]}
