from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from reshard import (
    CheckpointInfo,
    ConversionPlan,
    ConversionReport,
    IdentityReport,
    LayoutPreview,
    MapSummary,
    MultiReport,
    PartReport,
    PlannedIdentity,
    RequestPlan,
    RequestReport,
    Requests,
    TimePlan,
)
from reshard.answers.record import answer_of, plain, record_from, values
from reshard.cli.console import print_json
from reshard.conversion.plan import MultiConversionPlan, priced
from reshard.engine.task import CastStats
from reshard.formats.slices.file_digests import FileVerdict
from reshard.identity.identification import Identification
from reshard.identity.weights_identity import TensorIdentity
from reshard.inspection.layout_preview import preview
from reshard.layout.read_layout import parse_layout
from reshard.planning.plans import MultiPlan
from reshard.storage.buckets.doctor import BucketCheck, BucketReport
from reshard.storage.leftovers import Leftovers
from reshard.verification.fingerprint import Fingerprint, TensorDigest
from reshard.verification.reports import (
    AppliedRules,
    DiffReport,
    IdentityVerdict,
    LeafDiff,
    ReceiptVerdict,
    TensorDiff,
    TensorVerdict,
    Verification,
)
from tests.cli.specimens import SERVED, info, planned, report, spec, tensor_report

PAIR = (spec("a"), spec("b", axes=(None, "model"), mesh=SERVED))
LAYOUT = parse_layout({"mesh": {"axes": ["model"], "shape": [8]}})

TIME = TimePlan(16, 8, 12.5e9, 42.0, 20.0, 3.0)

IDENTIFICATION = Identification("a", "0", "1", "2", {"x": TensorIdentity("x", "int8", (2,), "3", "0" * 16)}, {}, 2, ("identity.json",), 0.5)  # fmt: skip

MAP = MapSummary(2, 1, 0, 0, 1, (("b", "a"),), ("a",))


def by_map(plan: ConversionPlan) -> ConversionPlan:
    """The plan as a map has it."""
    tensors = tuple(replace(t, sources=("a", "c"), change="exact") for t in plan.tensors)
    return replace(plan, tensors=tensors)


ROOT = Path(__file__).parents[2]

DOCUMENTS = {
    "inspect": answer_of("inspect", replace(info(spec("a"), others=("note",)), quantized="fp8")),
    "plan": answer_of(
        "plan",
        by_map(
            replace(
                priced(planned(PAIR), RequestPlan()).with_shares(),
                map=MAP,
                identity=PlannedIdentity("compute", source="0"),
                quantized="fp8",
                timed=TIME,
            )
        ),
    ),
    "convert": answer_of(
        "convert",
        replace(
            report(
                replace(
                    tensor_report("a", "int8", CastStats()),
                    sources=("a", "c"),
                    change="cast",
                    dequantized="exact",
                )
            ),
            map=MAP,
            identity=IdentityReport("0", "computed", "1", ("2",)),
            requests=RequestReport(Requests(), Requests()),
        ),
    ),
    "verify": answer_of(
        "verify",
        Verification(
            "a",
            None,
            (TensorVerdict("x", "equal", "0", "0"),),
            (FileVerdict("_METADATA", "recorded", "0", "0"),),
            rules=AppliedRules(select=("^x$",), from_="recorded"),
            map="recorded",
            identity=IdentityVerdict("0", "1", "2", "3", "llama", "7", "2026-11-29T08:00:00Z"),
            receipt=ReceiptVerdict("0", "1", "2", "3", "4"),
        ),
    ),
    "diff": answer_of(
        "diff",
        DiffReport(
            "a",
            "b",
            {"x": TensorDiff("x", "equal")},
            {"y": LeafDiff("y", "only in A", "None", None)},
            0.5,
        ),
    ),
    "fingerprint": answer_of(
        "fingerprint",
        Fingerprint("a", {"x": TensorDigest("x", "0")}, 3, 8, ("a/slices.json",), 0.5),
    ),
    "identify": answer_of("identify", IDENTIFICATION),
    "sign": answer_of("sign", replace(IDENTIFICATION, signer="2")),
    "doctor": answer_of(
        "doctor",
        BucketReport(
            "gs://b", (BucketCheck("write", True, "an object was put", "-"),), 0.1, 2.0, 3.0
        ),
    ),
    "clean": answer_of(
        "clean", Leftovers("gs://b/run/7", "gs://b/run/.7.reshard-partial", 3, 8, True)
    ),
    "layout": answer_of("layout", replace(preview(info(spec("a")), LAYOUT), file="f", source="s")),
}


KINDS = {
    "inspect": CheckpointInfo, "plan": ConversionPlan, "convert": ConversionReport, "verify": Verification, "diff": DiffReport,
    "fingerprint": Fingerprint, "identify": Identification, "sign": Identification, "doctor": BucketReport, "layout": LayoutPreview,
}  # fmt: skip


@pytest.mark.parametrize("command", KINDS)
def test_an_object_is_read_as_its_record(command: str) -> None:
    """A client reads the record that the call on this host returns; a value of another type would be refused."""
    text = json.dumps(plain(DOCUMENTS[command]))
    assert values(record_from(KINDS[command], msgspec.json.decode(text))) == {
        name: value for name, value in json.loads(text).items() if name != "command"
    }


@pytest.mark.parametrize("wrong", [[], {}, {"tensors": [{}]}, {"tensors": 3}])
def test_an_object_of_another_kind_is_refused(wrong: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        record_from(CheckpointInfo, wrong)


def documented(command: str) -> list[str]:
    """Every key that the documentation names for a command, in its order."""
    text = (ROOT / "docs" / "reference" / "json-output.md").read_text("utf-8")
    section = text.split(f"## {command}\n")[1].split("\n## ")[0]
    return re.findall(r"`(\w+)`", section)


def test_several_targets_are_documented() -> None:
    one_plan, one_report = planned(PAIR), report(tensor_report("a"))
    joint = MultiConversionPlan.of("s", (one_plan,), MultiPlan.alone(one_plan.plan))
    plans = answer_of("plan", replace(joint, timed=TIME))
    made = MultiReport("s", (one_report,), 7, 0.5)
    reports = answer_of("convert", made)
    for command, document, inner in (
        ("plan --target", plans, "plans"),
        ("convert --target", reports, "reports"),
    ):
        (one,) = document[inner]
        assert one["command"] == document["command"] == command.split()[0]
        assert set(document) - {"command"} == set(documented(command)) - {"plan", "convert"}


def test_a_part_is_documented() -> None:
    document = answer_of("convert", PartReport("a", "b", "3/16"))
    assert document["command"] == "convert"
    assert set(document) - {"command"} == set(documented("convert --part"))


def test_a_starter_layout_is_documented() -> None:
    document = answer_of("layout", source="ckpt", starter="mesh: {}")
    assert document["command"] == "layout"
    assert set(document) - {"command"} == set(documented("layout --starter"))


@pytest.mark.parametrize("command", DOCUMENTS)
def test_every_key_is_documented(command: str) -> None:
    document = DOCUMENTS[command]
    assert next(iter(document)) == "command"
    assert document["command"] == command
    assert keys_of(document) - {"command"} <= set(documented(command))


@pytest.mark.parametrize("command", DOCUMENTS)
def test_every_documented_key_is_there(command: str) -> None:
    statuses = {
        "equal",
        "different",
        "damaged",
        "checksum",
        "missing",
        "unexpected",
        "unreadable",
        "added",
        "float64",
        "complex128",
        "integers",
        "bits",
        "None",
        "Dict",
        "exact",
        "computed",
        "rounded",
        "given",
    }
    assert set(documented(command)) - statuses <= keys_of(DOCUMENTS[command])


def keys_of(value: object) -> set[str]:
    """The keys of an object and of all objects in it, meshes' own excepted."""
    if isinstance(value, dict):
        inner = (keys_of(v) for k, v in value.items() if "mesh" not in k)
        return set(value).union(*inner)
    if isinstance(value, list | tuple):
        return set().union(*map(keys_of, value))
    return set()


def printed(capsys: pytest.CaptureFixture[str], document: dict[str, Any]) -> object:
    print_json(document)
    out = capsys.readouterr().out
    assert out.endswith("\n")
    assert out.count("\n") == 1
    assert out.isascii()
    return json.loads(out)


@pytest.mark.parametrize("command", DOCUMENTS)
def test_each_is_one_line_of_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(printed(capsys, DOCUMENTS[command]), dict)


def test_names_and_numbers_survive(capsys: pytest.CaptureFixture[str]) -> None:
    name = "ü\x1b[2J\udc80"
    found = printed(capsys, answer_of("inspect", info(spec(name))))
    assert isinstance(found, dict)
    tensor = found["tensors"][0]
    assert (tensor["name"], tensor["shape"], tensor["axes"]) == (name, [16, 8], ["data", "model"])
    assert tensor["mesh"] == {"axes": ["data", "model"], "shape": [4, 2]}
    assert found["nbytes"] == 512


def test_infinity_is_a_string(capsys: pytest.CaptureFixture[str]) -> None:
    cast = CastStats(1, 0, float("inf"))
    found = printed(capsys, answer_of("convert", report(tensor_report("a", "float16", cast))))
    assert isinstance(found, dict)
    assert found["tensors"][0]["cast"]["largest_relative_error"] == "inf"


def test_shares_only_when_asked_for() -> None:
    assert "shares" not in planned(PAIR).to_dict()["tensors"][0]
    shares = planned(PAIR).with_shares().to_dict()["tensors"][0]["shares"]
    assert shares[:4] == [[0, 0, 0.25], [0, 2, 0.25], [0, 4, 0.25], [0, 6, 0.25]]


def test_the_time_only_when_asked_for() -> None:
    found = replace(planned(PAIR), timed=TIME).to_dict()["time"]
    assert (found["seconds"], found["bottleneck"], found["network_s"]) == (42.0, "cores", 20.0)
    assert "time" not in planned(PAIR).to_dict()


def test_the_requests_of_a_plan_are_those_of_the_link() -> None:
    made = priced(planned(PAIR), RequestPlan(Requests(list=3, head=2)), latency_s=0.5)
    assert planned(PAIR).to_dict()["requests"] is None
    found = made.to_dict()["requests"]
    assert (found["total"], found["list"], found["seconds"]) == (5, 3, 2.5)
    assert (found["latency_s"], found["bytes_per_s"]) == (0.5, 150e6)


def test_not_recorded_is_not_equal() -> None:
    found = answer_of(
        "verify", Verification("a", None, (TensorVerdict("x", "not recorded", "0", None),))
    )
    assert (found["equal"], found["differences"]) == (False, 0)
