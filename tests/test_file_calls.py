"""Only ``reshard.storage`` touches files of checkpoints: every other module reads them as locations.

The list of exceptions gives each module's reason. It shrinks as writers move to the store; a module that needs its
exception no longer makes the test fail.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent / "reshard"

FILE_MODULES = (
    "pathlib",
    "shutil",
    "glob",
    "tempfile",
    "reshard.storage.local.store",
    "reshard.storage.local.files",
)
OS_CALLS = frozenset(
    ["access", "chmod", "close", "copy_file_range", "fstat", "ftruncate", "link", "listdir", "lseek", "lstat", "makedirs", "mkdir", "open", "pread", "preadv", "pwrite", "read", "readlink", "remove", "removedirs", "rename", "renames", "replace", "rmdir", "scandir", "sendfile", "stat", "statvfs", "symlink", "sync", "truncate", "unlink", "walk", "write"]
)  # fmt: skip
PATH_CALLS = frozenset(
    [
        "exists",
        "getmtime",
        "getsize",
        "isdir",
        "isfile",
        "islink",
        "ismount",
        "lexists",
        "realpath",
        "samefile",
    ]
)

EXCEPTIONS = {
    "reads or writes files that users name, such as layouts": (
        "cli.commands.demo", "cli.commands.inspection", "cli.commands.rules", "cli.commands.serve", "cli.commands.view", "cli.remote", "cli.groups",
        "cli.console", "cli.target_options", "layout.layout_text",
    ),
    "moves a finished checkpoint up into the folder of an init container": ("cli.init_container",),
    "makes the folders of the demonstration": ("demo.serving_job", "demo.story", "demo.training_job"),
    "has the staging folder, the journal or the lock of a run": (
        "conversion.resumed",
    ),
    "writes targets, which are on local disks": (
        "engine.movers.passthrough", "engine.movers.one_task",
        "engine.write.chunk_files", "engine.write.sinks",
        "saving.orbax_manager",
    ),
    "starts processes of its own program": ("engine.executor",),
    "makes probes in a folder of their own, and looks for what a script made of each": ("rules.probe_files",),
    "asks how wide the terminal is": ("api.progress_lines",),
    "lets TensorStore write databases": ("formats.ocdbt.databases",),
}  # fmt: skip
"""Why these modules may touch files."""

EXCEPTED = frozenset(name for names in EXCEPTIONS.values() for name in names)


def uses_files(source: str) -> Iterator[str]:
    """What a module does with files by itself."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module=str(module)) if module in FILE_MODULES:
                yield f"imports {module}"
            case ast.Import(names=names):
                yield from (f"imports {n.name}" for n in names if n.name in FILE_MODULES)
            case ast.Attribute(value=ast.Name(id="os"), attr=attr) if attr in OS_CALLS:
                yield f"calls os.{attr}"
            case ast.Attribute(
                value=ast.Attribute(value=ast.Name(id="os"), attr="path"), attr=attr
            ) if attr in PATH_CALLS:
                yield f"calls os.path.{attr}"
            case ast.Call(func=ast.Name(id="open")):
                yield "calls open"


def modules() -> dict[str, str]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if not name.startswith("storage."):
            found[name] = path.read_text("utf-8")
    return found


def test_other_modules_use_no_files() -> None:
    found = {name: sorted(set(uses_files(source))) for name, source in modules().items()}
    using = {name: uses for name, uses in found.items() if uses}
    assert {n: u for n, u in using.items() if n not in EXCEPTED} == {}
    assert sorted(EXCEPTED - using.keys()) == [], "these need no exception any more"


PURE_STORAGE = ("reshard.storage.base",)
"""What planning may import of the storage: counts, which touch nothing."""

READERS = ("given_layout", "load_layout", "read_document")
"""Functions that read a file which users name."""


@cache
def modules_with_files() -> frozenset[str]:
    return frozenset(f"reshard.{name}" for name, text in modules().items() if any(uses_files(text)))


def opens_files(source: str) -> Iterator[str]:
    """What a module that only decides must not have: files, stores, and functions that read them."""
    yield from uses_files(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module in modules_with_files() or (
                node.module.startswith("reshard.storage") and node.module not in PURE_STORAGE
            ):
                yield f"imports {node.module}"
            yield from (f"imports {n.name}" for n in node.names if n.name in READERS)


def test_planning_opens_no_file() -> None:
    planning = {n: text for n, text in modules().items() if n.startswith("planning.")}
    assert len(planning) > 10
    found = {name: sorted(set(opens_files(source))) for name, source in planning.items()}
    assert {name: uses for name, uses in found.items() if uses} == {}
    bad = "from reshard.layout.read_layout import load_layout\nfrom reshard.storage.location import locate\n"
    bad += "from reshard.engine.write.chunk_files import write_chunk"
    assert list(opens_files(bad)) == [
        "imports load_layout",
        "imports reshard.storage.location",
        "imports reshard.engine.write.chunk_files",
    ]


def test_the_checker_sees_each_use() -> None:
    source = textwrap.dedent(
        """
        import os, shutil
        from pathlib import Path
        from reshard.storage.local.files import write_file
        from reshard.storage.location import locate
        os.stat("a"), os.path.realpath("a"), open("a"), locate("a").open(), os.fspath("a"), os.path.join("a", "b")
        """
    )
    assert list(uses_files(source)) == [
        "imports shutil",
        "imports pathlib",
        "imports reshard.storage.local.files",
        "calls open",
        "calls os.stat",
        "calls os.path.realpath",
    ]
