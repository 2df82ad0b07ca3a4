"""Imports run one way, in no circle, and nothing heavy is loaded before it is needed.

The checker reads the source with ``ast``; it is itself held against a made-up tree that breaks each
of its rules once.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = ("jax", "orbax", "tensorstore", "torch", "tensorflow", "keras", "huggingface_hub", "httpx2")

# Each may import itself and what comes after it; those in one string stand beside each other.
ORDER = (
    "__main__", "cli", "demo", "rules", "api", "checkpoint", "views", "conversion saving restoring streaming verification inspection executors deltas", "identity", "arithmetic", "maps", "engine", "planning",
    "formats", "storage", "variables", "options", "arguments", "layout", "patterns", "checksums", "answers", "geometry", "errors log strict version",
)  # fmt: skip
# What the command line may import of reshard besides its top: plans in detail, small pieces of text, and checks of words.
CLI_MODULES = (
    "reshard.answers.record", "reshard.answers.shared", "reshard.api.progress_lines", "reshard.api.views", "reshard.conversion.declared_options",
    "reshard.conversion.options", "reshard.conversion.plan", "reshard.conversion.report", "reshard.deltas.declared_options",
    "reshard.errors", "reshard.executors.ray", "reshard.geometry.sizes", "reshard.identity.keys", "reshard.identity.leaf_tree",
    "reshard.inspection.checkpoint_info", "reshard.layout.axes", "reshard.layout.changes", "reshard.layout.layout_file",
    "reshard.layout.read_layout", "reshard.layout.shard_picture", "reshard.maps.read_map", "reshard.options", "reshard.rules", "reshard.storage.buckets.doctor",
    "reshard.storage.local.files", "reshard.storage.location", "reshard.storage.parts", "reshard.verification.reports",
    "reshard.version",
)  # fmt: skip
ABOVE_THE_TOP = ("cli", "demo")
# Modules that the server may import of reshard besides its top.
PUBLIC_MODULES = (
    "reshard.formats.known_formats", "reshard.api.sources", "reshard.api.views",
    "reshard.answers.record", "reshard.arguments", "reshard.arithmetic.average", "reshard.conversion.declared_options", "reshard.conversion.options",
    "reshard.conversion.plan", "reshard.deltas.declared_options", "reshard.deltas.versions", "reshard.errors",
    "reshard.executors.ray", "reshard.formats.delta.index_values", "reshard.formats.names", "reshard.formats.registry",
    "reshard.formats.safetensors.slices", "reshard.formats.steps", "reshard.formats.tensorflow.files", "reshard.geometry.dtypes",
    "reshard.geometry.sizes", "reshard.identity.envelope", "reshard.identity.identity_file", "reshard.identity.leaf_tree",
    "reshard.identity.slice_proof", "reshard.inspection.checkpoint_info", "reshard.layout.bridges.from_keras", "reshard.layout.changes",
    "reshard.layout.layout_text", "reshard.layout.shard_picture", "reshard.maps.read_map", "reshard.options", "reshard.planning.rules",
    "reshard.storage.hub.address", "reshard.storage.hub.store", "reshard.storage.location", "reshard.storage.parts", "reshard.storage.targets", "reshard.streaming.tensor_stream", "reshard.verification.reports",
    "reshard.views.checkpoint_view",
)  # fmt: skip
SERVER_ORDER = (
    "work", "serve", "app", "refuse_before_body", "pages faces", "api", "middleware views", "resources", "services", "schedules", "jobs",
    "engines", "worker deliveries", "observability", "auth", "db", "schemas settings", "errors host_clock",
)  # fmt: skip
# What the client may import of the server; nothing of the server imports the client.
CLIENT_MAY = (
    "reshard_server.client",
    "reshard_server.schemas",
    "reshard_server.errors.value_errors",
)
# Which commands may import the server when they run.
SERVER_COMMANDS = (
    "reshard.cli.commands.jobs", "reshard.cli.commands.serve", "reshard.cli.commands.view", "reshard.cli.remote", "reshard.cli.views.jobs",
)  # fmt: skip

RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts.split()}
SERVER_RANK = {part: rank for rank, parts in enumerate(SERVER_ORDER) for part in parts.split()}


@dataclass(frozen=True)
class Import:
    """One import statement: who, what, and whether it runs when the importer is loaded."""

    importer: str
    target: str
    line: int
    at_load: bool
    relative: bool = False


def modules(root: Path, package: str) -> dict[str, Path]:
    """Every module of a package by its dotted name."""
    names = {}
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def statements(node: ast.AST, at_load: bool = True) -> Iterator[tuple[ast.stmt, bool]]:
    """Every import statement below ``node``, and whether loading the module runs it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, at_load
        later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from statements(child, at_load and not later and not is_type_checking(child))


def imports(name: str, path: Path, known: dict[str, Path]) -> Iterator[Import]:
    """What a module imports; ``from package import module`` counts as the module."""
    for node, at_load in statements(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        else:
            assert isinstance(node, ast.ImportFrom)
            base = node.module or ""
            if node.level:
                up = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
                up = up[: len(up) - node.level + 1]
                base = ".".join([*up, *([node.module] if node.module else [])])
            inner = [f"{base}.{alias.name}" for alias in node.names]
            targets = [i if i in known else base for i in inner]
        relative = isinstance(node, ast.ImportFrom) and node.level > 0
        for target in dict.fromkeys(targets):
            yield Import(name, target, node.lineno, at_load, relative)


def all_imports(root: Path, package: str) -> list[Import]:
    known = modules(root, "reshard") | modules(root, package)
    return [i for name, path in modules(root, package).items() for i in imports(name, path, known)]


def part(module: str, package: str = "reshard") -> str | None:
    """``reshard.geometry.box`` → ``layout``; None for the top of the package and for other packages."""
    names = module.split(".")
    return names[1] if names[0] == package and len(names) > 1 else None


def wrong_way(found: Import) -> bool:
    importer, target = part(found.importer), part(found.target)
    if found.target.split(".")[0] != "reshard":
        lazily = found.importer in SERVER_COMMANDS and not found.at_load
        return found.target.split(".")[0] == "reshard_server" and not lazily
    if importer is None:
        return False  # reshard/__init__.py gathers the public names
    if target is None:
        return importer not in ABOVE_THE_TOP  # importing the top from below it is a circle
    if importer not in RANK or target not in RANK:
        return True  # a part without a rank needs one
    return importer != target and RANK[target] <= RANK[importer]


def not_public(found: Import) -> bool:
    """Whether the command line or the demo imports what is neither public nor one of its modules."""
    return (
        part(found.importer) in ABOVE_THE_TOP
        and part(found.target) not in (None, *ABOVE_THE_TOP)
        and found.target not in CLI_MODULES
    )


def wrong_way_in_server(found: Import) -> bool:
    if found.target.split(".")[0] != "reshard_server":
        return False
    importer, target = (part(m, "reshard_server") for m in (found.importer, found.target))
    if importer == "client":
        return not f"{found.target}.".startswith(tuple(f"{module}." for module in CLIENT_MAY))
    if importer not in SERVER_RANK or target not in SERVER_RANK:
        return True
    return importer != target and SERVER_RANK[target] <= SERVER_RANK[importer]


def problems(root: Path) -> list[str]:
    """Every broken rule of the two packages, one line each."""
    ours, server = all_imports(root, "reshard"), all_imports(root / "server", "reshard_server")
    found = [(i, "runs the wrong way") for i in ours if wrong_way(i)]
    found += [(i, "runs the wrong way") for i in server if wrong_way_in_server(i)]
    found += [(i, "is loaded at once; import it where it is used") for i in ours
              if i.at_load and i.target.split(".")[0] in HEAVY]  # fmt: skip
    found += [(i, "is relative; use the full name") for i in [*ours, *server] if i.relative]
    found += [(i, "is not a public name of reshard") for i in server
              if part(i.target) is not None and i.target not in PUBLIC_MODULES]  # fmt: skip
    found += [(i, "is not a public name of reshard") for i in ours if not_public(i)]
    lines = [f"{i.importer}:{i.line}: import of {i.target} {why}" for i, why in found]
    lines += circles(modules(root, "reshard"), ours)
    return lines + circles(modules(root / "server", "reshard_server"), server)


def circles(known: dict[str, Path], found: list[Import]) -> list[str]:
    graph: dict[str, set[str]] = {name: set() for name in known}
    for i in found:
        if i.at_load and i.target in known and i.target != i.importer:
            graph[i.importer].add(i.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [f"circle: {', '.join(sorted(set(error.args[1])))}"]
    return []


def loaded(root: Path, names: list[str]) -> dict[str, list[str]]:
    """For each module, the heavy packages that importing it (after those before it) has loaded."""
    code = (
        "import importlib, json, sys\nfound = {}\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        f"    found[name] = [h for h in {HEAVY!r} if h in sys.modules]\n"
        "print(json.dumps(found))"
    )
    path = os.pathsep.join([str(root), str(root / "server")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        cwd=root,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, list[str]] = json.loads(done.stdout)
    return answer


def test_imports_run_one_way() -> None:
    assert len(modules(ROOT, "reshard")) > 10
    assert len(modules(ROOT / "server", "reshard_server")) > 10
    assert problems(ROOT) == []


def test_the_server_imports_each_module_that_it_may() -> None:
    server = all_imports(ROOT / "server", "reshard_server")
    assert {i.target for i in server} >= set(PUBLIC_MODULES)


def test_every_part_has_a_rank() -> None:
    parts = {p for name in modules(ROOT, "reshard") if (p := part(name)) is not None}
    assert parts <= set(RANK)
    server = modules(ROOT / "server", "reshard_server")
    found = {p for name in server if (p := part(name, "reshard_server")) is not None}
    assert found <= {*SERVER_RANK, "client"}


def test_importing_reshard_loads_nothing_heavy() -> None:
    assert loaded(ROOT, ["reshard"]) == {"reshard": []}


def test_importing_reshard_opens_no_store() -> None:
    """Each module takes its time at every start, and most starts need a part of them."""
    code = "import sys, reshard; print([n for n in sys.modules if n.startswith('reshard.storage')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_importing_every_module_loads_nothing_heavy() -> None:
    names = [name for name in modules(ROOT, "reshard") if not name.endswith("__main__")]
    assert {name: heavy for name, heavy in loaded(ROOT, names).items() if heavy} == {}


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


SOUND = {
    "reshard/__init__.py": "from reshard.api import convert",
    "reshard/api.py": "from reshard.engine.run import go\nfrom reshard import errors",
    "reshard/engine/__init__.py": "",
    "reshard/engine/run.py": "from reshard.planning import planner\nfrom reshard.formats.base import R\ndef go(): import jax",
    "reshard/planning/__init__.py": "",
    "reshard/planning/planner.py": "from reshard.geometry import box",
    "reshard/formats/__init__.py": "",
    "reshard/formats/base.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import jax",
    "reshard/geometry/__init__.py": "",
    "reshard/geometry/box.py": "import numpy\nfrom reshard.errors import E",
    "reshard/errors.py": "",
    "server/reshard_server/app.py": "import reshard\nfrom reshard import convert\nfrom reshard_server.jobs import durable",
    "server/reshard_server/jobs/__init__.py": "",
    "server/reshard_server/jobs/queue.py": "from reshard_server.errors import problems",
    "server/reshard_server/errors/__init__.py": "",
    "server/reshard_server/errors/problems.py": "",
    "server/reshard_server/client/__init__.py": "import reshard_server.schemas",
    "server/reshard_server/schemas/__init__.py": "",
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, []),
        ({"reshard/geometry/box.py": "from reshard.planning.planner import p"},
         ["reshard.geometry.box:1: import of reshard.planning.planner runs the wrong way",
          "circle: reshard.geometry.box, reshard.planning.planner"]),
        ({"reshard/geometry/box.py": "def f():\n    from reshard.api import convert"},
         ["reshard.geometry.box:2: import of reshard.api runs the wrong way"]),
        ({"reshard/geometry/box.py": "def f():\n    import reshard"},
         ["reshard.geometry.box:2: import of reshard runs the wrong way"]),
        ({"reshard/geometry/box.py": "from . import grid", "reshard/geometry/grid.py": ""},
         ["reshard.geometry.box:1: import of reshard.geometry.grid is relative; use the full name"]),
        ({"reshard/cli/__init__.py": "import reshard\nfrom reshard.engine.run import go\nfrom reshard.errors import E"},
         ["reshard.cli:2: import of reshard.engine.run is not a public name of reshard"]),
        ({"reshard/storage/__init__.py": "", "reshard/storage/local/files.py": "from reshard import formats"},
         ["reshard.storage.local.files:1: import of reshard.formats runs the wrong way"]),
        ({"reshard/formats/base.py": "from reshard.planning import planner"},
         ["reshard.formats.base:1: import of reshard.planning.planner runs the wrong way"]),
        ({"reshard/errors.py": "import reshard_server.app"},
         ["reshard.errors:1: import of reshard_server.app runs the wrong way"]),
        ({"reshard/odd.py": "from reshard import errors"},
         ["reshard.odd:1: import of reshard.errors runs the wrong way"]),
        ({"reshard/geometry/box.py": "try:\n    from jax.sharding import Mesh\nexcept ImportError: pass"},
         ["reshard.geometry.box:2: import of jax.sharding is loaded at once; import it where it is used"]),
        ({"reshard/geometry/grid.py": "from reshard.geometry.box import B", "reshard/geometry/box.py": "from reshard.geometry import grid"},
         ["circle: reshard.geometry.box, reshard.geometry.grid"]),
        ({"server/reshard_server/app.py": "from reshard.errors import E\nimport reshard.engine.run"},
         ["reshard_server.app:2: import of reshard.engine.run is not a public name of reshard"]),
        ({"server/reshard_server/errors/problems.py": "def f():\n    from reshard_server.jobs.queue import D"},
         ["reshard_server.errors.problems:2: import of reshard_server.jobs.queue runs the wrong way"]),
        ({"server/reshard_server/errors/problems.py": "from reshard_server import schemas"},
         ["reshard_server.errors.problems:1: import of reshard_server.schemas runs the wrong way"]),
        ({"server/reshard_server/client/__init__.py": "from reshard_server.errors.problems import P"},
         ["reshard_server.client:1: import of reshard_server.errors.problems runs the wrong way"]),
        ({"server/reshard_server/jobs/queue.py": "from reshard_server import client"},
         ["reshard_server.jobs.queue:1: import of reshard_server.client runs the wrong way"]),
        ({"server/reshard_server/odd.py": "from reshard_server.errors import problems"},
         ["reshard_server.odd:1: import of reshard_server.errors.problems runs the wrong way"]),
        ({"server/reshard_server/jobs/a.py": "from reshard_server.jobs import b",
          "server/reshard_server/jobs/b.py": "from reshard_server.jobs import a"},
         ["circle: reshard_server.jobs.a, reshard_server.jobs.b"]),
        ({"reshard/cli/__init__.py": "", "reshard/cli/commands/__init__.py": "",
          "reshard/cli/commands/serve.py": "import reshard_server.app\ndef f():\n    import reshard_server.app"},
         ["reshard.cli.commands.serve:1: import of reshard_server.app runs the wrong way"]),
    ],
)  # fmt: skip
def test_the_checker_notices(tmp_path: Path, files: dict[str, str], expected: list[str]) -> None:
    assert problems(tree(tmp_path, SOUND | files)) == expected


def test_the_subprocess_notices(tmp_path: Path) -> None:
    files = {
        "jax/__init__.py": "",
        "reshard/__init__.py": "",
        "reshard/late.py": "def f():\n    import jax",
        "reshard/geometry/__init__.py": "import reshard.hidden",
        "reshard/hidden.py": "__import__('jax')",
    }
    names = ["reshard", "reshard.late", "reshard.geometry"]
    assert loaded(tree(tmp_path, files), names) == {
        "reshard": [],
        "reshard.late": [],
        "reshard.geometry": ["jax"],
    }
