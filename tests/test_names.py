"""One name, one meaning: functions, classes and type aliases of two modules do not share a name, and modules that a text of the code names exist."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest

import reshard

ROOT = Path(__file__).parent.parent
LIBRARY = ROOT / "reshard"
SERVICE = ROOT / "server" / "reshard_server"

SURFACES = ("__init__", "__main__", "api", "cli", "demo", "rules")
"""Rooms that show what others do: a command, a public function and its answer have one name."""

COUNTED = ("delete", "put", "put_parts")
"""A request to a bucket, and the same request counted."""

SHOWN = (*SURFACES, "answers")
"""Rooms that show classes of others: an option of a command, and the document of a report, have the report's name."""

LOCATE = "locate"
"""Of a path, and of a checkpoint: the first is called everywhere, and the second is public."""

OTHERS = (
    "_src/", "experimental/v1/_src/", "flax/", "orbax/checkpoint/", "tensorflow/python/", "torch/", "modeling_utils.py", "filesystem.py",
)  # fmt: skip
"""Files of Orbax, flax, TensorFlow, torch and transformers."""

LIBRARIES = ("ocdbt.process_N", "ray.", "torch.Size", "torch._utils", "torch.save")
"""Names of other libraries, and a folder of TensorStore, that begin as a module here does."""

FILE_ENDINGS = (".py", ".json", ".tree", ".ocdbt")
NAME = re.compile(r"``([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\(\))?``")
FILE = re.compile(r"[\w/]*\b[a-z_]+\.py\b")


def public_functions(root: Path) -> dict[str, set[str]]:
    """The modules, below ``root``, of each public function at the top of one."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(root.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                found[node.name].add(path.relative_to(root).with_suffix("").as_posix())
    return found


def public_types(root: Path) -> dict[str, set[str]]:
    """The modules, below ``root``, of each public class and type alias at the top of one."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(root.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            name = type_of(node)
            if name and not name.startswith("_"):
                found[name].add(path.relative_to(root).with_suffix("").as_posix())
    return found


def type_of(node: ast.stmt) -> str:
    """The class or type alias that a statement defines; "" for none. What a call makes is a value, or a type variable."""
    match node:
        case ast.ClassDef(name=name):
            return name
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if not isinstance(
            value, ast.Call
        ):
            return name if name[0].isupper() and not name.isupper() else ""
        case _:
            return ""


def shared(names: dict[str, set[str]], surfaces: Sequence[str] = SURFACES) -> dict[str, list[str]]:
    """The names that two modules give to functions, or to types, where neither only shows what the other does.

    Two formats do the same, each for its files, and known_formats asks them.
    """
    found = {}
    for name, all_modules in names.items():
        inside = sorted(m for m in all_modules if m.split("/")[0] not in surfaces)
        pairs = combinations(inside, 2)
        if not all(
            is_of_a_format(a) and is_of_a_format(b) and room(a) != room(b) for a, b in pairs
        ):
            found[name] = inside
    return found


def room(module: str) -> str:
    return module.rpartition("/")[0]


def is_of_a_format(module: str) -> bool:
    return module == "formats/known_formats" or room(module).startswith("formats/")


def test_no_two_modules_have_a_function_of_one_name() -> None:
    found = shared(public_functions(LIBRARY))
    assert {name: modules for name, modules in found.items() if name not in COUNTED} == {}
    assert {*COUNTED} <= {*found}


def test_no_two_modules_have_a_class_or_a_type_alias_of_one_name() -> None:
    assert shared(public_types(LIBRARY), SHOWN) == {}


def test_functions_inside_have_no_public_name() -> None:
    inside = {
        name: modules
        for name, modules in public_functions(LIBRARY).items()
        if name in reshard.__all__ and any(m.split("/")[0] not in SURFACES for m in modules)
    }
    several = {name: modules for name, modules in inside.items() if len(modules) > 1}
    assert sorted(several) == [LOCATE]


def test_the_check_of_names_finds_what_it_looks_for(tmp_path: Path) -> None:
    for folder in ("engine", "planning", "api", "formats/orbax", "formats/zarr"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "code.py").write_text("def _inner(): ...\n")
    for folder in ("engine", "planning", "api"):
        (tmp_path / folder / "code.py").write_text("def look(): ...\n")
    for folder in ("formats/orbax", "formats/zarr"):
        (tmp_path / folder / "code.py").write_text("def leaves(): ...\n")
    assert shared(public_functions(tmp_path)) == {"look": ["engine/code", "planning/code"]}
    (tmp_path / "formats" / "zarr" / "other.py").write_text("def leaves(): ...\n")
    assert [*shared(public_functions(tmp_path))] == ["look", "leaves"]


def test_the_check_of_types_finds_what_it_looks_for(tmp_path: Path) -> None:
    for folder in ("engine", "planning", "answers"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "code.py").write_text("class Plan: ...\n")
    aliases = 'Sizes = tuple[int, ...]\nMAX = 1\n_Own = int\nT = TypeVar("T")\n'
    (tmp_path / "engine" / "other.py").write_text(aliases)
    (tmp_path / "planning" / "other.py").write_text(f"class Sizes: ...\n{aliases[24:]}")
    found = shared(public_types(tmp_path), SHOWN)
    assert found == {
        "Plan": ["engine/code", "planning/code"],
        "Sizes": ["engine/other", "planning/other"],
    }


def texts(source: str) -> Iterator[str]:
    """Docstrings, also those of constants, and comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield str(node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


@cache
def top_names(module: Path) -> set[str]:
    """What a module has at its top."""
    names: set[str] = set()
    for node in ast.parse(module.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return names


def variables(source: str) -> Iterator[str]:
    """Variables, arguments and attributes in the code of a file, which its texts may name."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                yield name


def begins_here(folder: Path, dotted: str) -> bool:
    first = dotted.split(".")[0]
    return (folder / first).is_dir() or (folder / f"{first}.py").is_file()


def is_there(folder: Path, dotted: str) -> bool:
    """Whether a dotted name below a folder is a room, a module, or a name at the top of one."""
    first, _, rest = dotted.partition(".")
    if not first or (folder / first).is_dir():
        return not rest or is_there(folder / first, rest)
    module = folder / f"{first}.py"
    if module.is_file():
        return not rest or rest.split(".")[0] in top_names(module)
    package = folder / "__init__.py"
    return package.is_file() and first in top_names(package)


def folders_of(path: Path, root: Path) -> list[Path]:
    """The folders in which a name may begin: those that a module is in, and the library."""
    above = [folder for folder in path.parents if folder.is_relative_to(root)]
    return [*above, LIBRARY]


def lost_names(path: Path, root: Path) -> list[str]:
    """The modules, and names of modules, that texts of a file name and that are not there."""
    source = path.read_text("utf-8")
    own = set(variables(source))
    found = []
    for text in texts(source):
        for name in NAME.findall(text):
            if name.endswith(FILE_ENDINGS):
                continue
            dotted = name.removeprefix(f"{root.name}.")
            folders = [f for f in folders_of(path, root) if begins_here(f, dotted)]
            is_other = dotted.split(".")[0] in own or dotted.startswith(LIBRARIES)
            if folders and not is_other and not any(is_there(f, dotted) for f in folders):
                found.append(name)
        found += [file for file in FILE.findall(text) if not is_file(file, path, root)]
    return found


def is_file(name: str, path: Path, root: Path) -> bool:
    """Whether a file that a text names is there, or is one of another project."""
    if name.startswith(OTHERS) or not name.islower():  # formats/NAME/options.py
        return True
    return any((folder / name).is_file() for folder in [*folders_of(path, root), ROOT])


def modules(roots: Iterable[Path]) -> list[tuple[Path, Path]]:
    return [(path, root) for root in roots for path in sorted(root.rglob("*.py"))]


@pytest.mark.parametrize("root", [LIBRARY, SERVICE], ids=["library", "service"])
def test_modules_that_texts_name_exist(root: Path) -> None:
    lost = {str(path.relative_to(ROOT)): lost_names(path, root) for path, root in modules([root])}
    assert {path: names for path, names in lost.items() if names} == {}


@pytest.mark.parametrize(
    "text",
    [
        "``engine.pairing`` pairs them.",
        "``engine.books.Accounts`` adds up.",
        "See ``pairing.py``.",
        "See ``engine/pairing.py``.",
    ],
)
def test_the_check_of_texts_finds_what_it_looks_for(tmp_path: Path, text: str) -> None:
    root = tmp_path / "reshard"
    (root / "engine").mkdir(parents=True)
    (root / "engine" / "books.py").write_text("class Books: ...\n")
    module = root / "code.py"
    module.write_text(f'"""A module. {text}"""\n')
    assert len(lost_names(module, root)) == 1
    module.write_text('"""``engine.books.Books`` of ``engine/books.py``."""\n')
    assert lost_names(module, root) == []
