"""Select, drop, rename and cast rules that make no sense."""

from __future__ import annotations

import pytest

import reshard
from reshard.errors import (
    FormatError,
    PlanError,
)
from tests.robustness.bad_input.checking import (
    refused,
    refused_by_command,
)


@pytest.mark.parametrize(
    ("options", "args", "texts"),
    [
        ({"select": ["parms/"]}, ["--select", "parms/"],
            ("select 'parms/' matches none of the 7 names it could apply to (", "correct or remove it")),
        ({"drop": ["^opt"]}, ["--drop", "^opt"], ("drop '^opt' matches none of the 7 names",)),
        ({"select": ["table"], "drop": ["count"]}, ["--select", "table", "--drop", "count"],
            ("drop 'count' matches none of the 1 names it could apply to (table)",)),
        ({"rename": [("nothing", "x")]}, ["--rename", "nothing=x"], ("rename 'nothing' matches none",)),
        ({"cast": [("^name$", "int8")]}, ["--cast", "^name$=int8"],
            ("cast '^name$' matches none of the 6 names",)),
        ({"select": ["("]}, ["--select", "("], ("select '(' is no regular expression", "escape")),
        ({"drop": ["."]}, ["--drop", "."],
            ("nothing is left: select and drop rules keep none of the 6 tensors; loosen them",)),
        ({"select": ["^name$"]}, ["--select", "^name$"], ("keep none of the 6 tensors",)),
        ({"rename": [("kernel|bias", "x")]}, ["--rename", "kernel|bias=x"],
            ("'params/bias' and 'params/kernel' would both be written as 'params/x'", "rename or drop one of them")),
        ({"rename": [("^count$", "table")]}, ["--rename", "^count$=table"],
            ("would both be written as 'table'",)),
        ({"rename": [("^count$", "table/count")]}, ["--rename", "^count$=table/count"],
            ("'count' would be written as 'table/count', but 'table' is a leaf itself",)),
        ({"rename": [("^count$", "")]}, ["--rename", "^count$="],
            ("'count' would be renamed to '', which is not a usable name",)),
        ({"rename": [("^count$", "../count")]}, ["--rename", "^count$=../count"],
            ("'count' would be renamed to '../count', which is not a usable name",)),
        ({"rename": [("^count$", "/etc/count")]}, ["--rename", "^count$=/etc/count"],
            ("'/etc/count', which is not a usable name",)),
        ({"rename": [("^count$", r"\2")]}, ["--rename", r"^count$=\2"],
            ("the replacement cannot be made: invalid group reference", "the pattern has 0 groups")),
        ({"rename": [("^count$", "n" * 300)]}, ["--rename", "^count$=" + "n" * 300],
            ("needs a file name of 300 bytes, but file systems take 255 at most",)),
        ({"rename": [("^count$", r"a\\b")]}, ["--rename", r"^count$=a\\b"],
            (r"tensor 'a\\b' would be written to the folder", "or write with ocdbt")),
        ({"rename": [("^count$", "_METADATA")]}, ["--rename", "^count$=_METADATA"],
            ("'_METADATA'", "metadata needs")),
        ({"rename": [("^count$", "params.kernel")]}, ["--rename", "^count$=params.kernel"],
            ("Orbax's dotted name 'params.kernel'", "rename one")),
        ({"cast": [("kernel", "float33")]}, ["--cast", "kernel=float33"],
            ("cast 'kernel'='float33': no such dtype; expected one of:", "bfloat16")),
        ({"cast": [("count|table", "float16")]}, ["--cast", "count|table=float16"],
            ("matches 'count' of dtype int32: int to float is done only when asked for by name", "cast 'count=float16'")),
        ({"cast": [("params", "int8")]}, ["--cast", "params=int8"],
            ("of dtype float32: float to int is done only when asked for by name",)),
        ({"cast": [("^wave$", "float32")]}, ["--cast", "^wave$=float32"],
            ("matches 'wave' of dtype complex64: the imaginary part would be lost; narrow the pattern",)),
        ({"cast": [("key", "uint8")]}, ["--cast", "key=uint8"],
            ("matches 'key', which is a PRNG key: its bits have no numeric meaning",)),
    ],
)  # fmt: skip
def test_changes_that_make_no_sense(options, args, texts, source, tmp_path, capsys):
    refused(source, tmp_path / "dst", (PlanError, FormatError), *texts, **options)
    is_usage = any(w in texts[0] for w in ("no regular expression", "no such dtype"))
    code = 2 if is_usage else 1
    refused_by_command(capsys, source, tmp_path / "dst", *texts, args=args, code=code)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"select": "params"}, "select is 'params'; expected a list of regular expressions"),
        ({"drop": [3]}, "drop is [3]; expected a list of regular expressions"),
        ({"drop": 3}, "drop is 3; expected a list of regular expressions"),
        ({"rename": ["ab"]}, "rename is ['ab']; expected pairs of a regular expression and a replacement"),
        ({"rename": "ab"}, "rename is 'ab'; expected pairs"),
        ({"cast": [("a", "b", "c")]}, "expected pairs of a regular expression and a dtype"),
        ({"cast": {"a": 3}}, "cast is {'a': 3}; expected pairs"),
    ],
)  # fmt: skip
def test_changes_of_the_wrong_kind(options, text, source, tmp_path):
    refused(source, tmp_path / "dst", PlanError, text, **options)


def test_integers_become_floats_when_asked_for_by_name(source, tmp_path):
    reshard.convert(source, tmp_path / "dst", cast=[("^count$", "float32")])
    dtypes = {n: t.spec.dtype for n, t in reshard.inspect(tmp_path / "dst").tensors.items()}
    assert dtypes["count"] == "float32"
