"""What lies in ``deploy/``, read as the programs read it that it is for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import yaml
from reshard_server.settings import Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MIB = 1 << 20
UNITS = {"": 1, "M": MIB, "G": MIB << 10, "Mi": MIB, "Gi": MIB << 10}
"""Docker's and systemd's M and G, and those of Kubernetes: all powers of 1024."""


def most_bytes(settings: Settings) -> int:
    """What a server and its children may take with these settings; docs/reference/service/settings.md has the formula."""
    children = settings.running + settings.looks + settings.reads
    streams = settings.streams * settings.stream_memory
    views = settings.view_cache + 32 * MIB
    return 256 * MIB + children * (settings.max_memory + 128 * MIB) + streams + views


def parse_size(text: str) -> int:
    """Bytes of ``4G`` (Docker, systemd) or ``4Gi`` (Kubernetes)."""
    number, unit = re.fullmatch(r"(\d+)(\w*)", text).groups()
    return int(number) * UNITS[unit]


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions with their arguments."""
    text = (DEPLOY / "Dockerfile").read_text()
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    joined = re.sub(r"\\\n\s*", "", lines).splitlines()
    return [(word, rest) for word, _, rest in (x.partition(" ") for x in joined if x.strip())]


def image_environment() -> dict[str, str]:
    """What ENV sets in the image's last stage."""
    last = max(i for i, (word, _) in enumerate(instructions()) if word == "FROM")
    sets = [rest for word, rest in instructions()[last:] if word == "ENV"]
    return dict(pair.split("=", 1) for rest in sets for pair in shlex.split(rest))


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def manifests() -> Iterator[dict[str, Any]]:
    """Every Kubernetes object."""
    for file in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        # The loader in C is ten times as fast, and tests are collected with what it reads.
        yield from yaml.load_all(file.read_text(), Loader=yaml.CSafeLoader)


def manifest(kind: str, name: str) -> dict[str, Any]:
    (found,) = (m for m in manifests() if (m["kind"], m["metadata"]["name"]) == (kind, name))
    return found


def pod(kind: str, name: str) -> dict[str, Any]:
    """The spec of the pods of a Deployment, a CronJob or a Job."""
    spec = manifest(kind, name)["spec"]
    return (spec["jobTemplate"]["spec"] if kind == "CronJob" else spec)["template"]["spec"]


def job_template() -> dict[str, Any]:
    """The template of the Jobs that the service makes."""
    return yaml.safe_load(manifest("ConfigMap", "reshard-engine")["data"]["job.yaml"])


def unit() -> RawConfigParser:
    """The systemd unit; of a key that is there twice only the last is told."""
    parser = RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read(DEPLOY / "systemd" / "reshard.service")
    return parser
