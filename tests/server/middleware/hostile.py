"""A thousand requests that must be refused, made from a seed: broken in HTTP, in JSON, in a field or in a path."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tests.server.tokens import TOKENS

PATHS = (
    "", "/", "//", "data//x", "data/", "/etc/passwd", "data/..", "data/../../etc/passwd", "../data/x", "data/./x",
    "data/%2e%2e/x", "data/%252e%252e/x", "data/..%2f..", "data/x%00y", "file:///etc/passwd", "gs://bucket/x",
    "s3://user:pass@host/x", "http://169.254.169.254/latest", "data/x|ocdbt:", "data/x|zarr3:", "data/x?y", "data/x#y",
    "data/x;y", "data\\..\\x", "data/\x1b[0m", "data/\u2028x", "data/\x7f", "nowhere/x", "other/x", "data/out/x",
    "data/absolute/x", "data/" + "a" * 300, "data/" + "a/" * 2500 + "a", "data/~/../x", "data/a\nb", "~root/x",
    '{"driver": "file", "path": "/"}', "data/x\t", "\ufeffdata/x", "data/.x.reshard-partial/..",
)  # fmt: skip
"""None of these may be named: not below a root, not plain, or through a link that leads out."""

ODD = (
    None, True, 1, -1, 1.5, 10**300, [], [None], [[]], {}, {"a": {}}, {"$ref": "/"}, [["x"] * 3], "\u202e",
)  # fmt: skip
"""Values that have another type than their field."""

JSON_TEXTS = (
    b"", b"{", b"}", b"[", b"nul", b"'x'", b"{'a':1}", b'{"a":1,}', b'{"a":NaN}', b'{"a":-Infinity}', b'{"a":1e999}',
    b'{"a":' + b"9" * 5000 + b"}", b'{"a":1,"a":2}', b'{"a":"\\u0000"}', b'{"a":"\\ud800"}', b'{"\\udfff":1}',
    b'"\x00"', b"\xff\xfe{}", b"\xef\xbb\xbf{}", b"{\x00}", b'{"a":"\x01"}', b"[" * 15000, b'{"a":' * 3000, b"\x80",
    b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", b"0" * 50, b"[1]", b"null", b'"text"', b"{} {}", b"1",
)  # fmt: skip

FIELDS = (
    "source", "target", "layout", "mesh", "missing_axes", "missing_chunks", "select", "drop", "rename", "cast", "compression", "chunk_bytes", "ocdbt",
    "style", "overwrite", "restart", "verify", "max_memory", "workers", "priority", "labels", "targets",
)  # fmt: skip

MAY_BE_NULL = {"layout", "mesh", "chunk_bytes", "style", "missing_chunks", "max_memory", "workers"}


@dataclass(frozen=True)
class Hostile:
    """Bytes to send, and a description for a failed test.

    Attributes:
        half: whether the client stops in the middle, and the server has to end it.
    """

    kind: str
    data: bytes
    half: bool = False


def request(
    method: str, target: str, *more: str, body: bytes | None = None, who: str | None = "ann"
) -> bytes:
    head = [f"{method} {target} HTTP/1.1", "Host: x", "Connection: close", *more]
    if who:
        head.append(f"Authorization: Bearer {TOKENS[who][0]}")
    if body is not None:
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + (body or b"")


def post(target: str, document: Any, *more: str, who: str = "ann") -> bytes:
    return request("POST", target, *more, body=json.dumps(document).encode(), who=who)


class Maker:
    """Makes hostile requests of each kind, by chance."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def all(self, number: int) -> Iterator[Hostile]:
        """So many, of every kind in turn."""
        kinds: list[Callable[[], Hostile]] = [
            self.broken_json, self.wrong_type, self.body_path, self.query_path, self.wrong_method, self.wrong_media,
            self.bad_header, self.oversized, self.smuggled, self.garbage, self.unknown, self.not_allowed,
            self.bad_query, self.odd_layout,
        ]  # fmt: skip
        for index in range(number):
            yield kinds[index % len(kinds)]()

    def broken_json(self) -> Hostile:
        text = self.chance.choice(JSON_TEXTS)
        target = self.chance.choice(
            ["/v1/conversions", "/v1/plans", "/v1/checkpoints:inspect", "/v1/layouts:preview"]
        )
        return Hostile("broken json", request("POST", target, body=text))

    def wrong_type(self) -> Hostile:
        field = self.chance.choice(FIELDS)
        fits = {
            "labels": ({},), "select": ([],), "drop": ([],), "rename": ([],), "cast": ([],), "layout": ({},),
            "ocdbt": (True,), "overwrite": (True,), "restart": (True,), "workers": (1,), "priority": (1, -1),
        }.get(field, ())  # fmt: skip
        odd = [o for o in ODD if not any(o is f or (o == f and type(o) is type(f)) for f in fits)]
        if field in MAY_BE_NULL:
            odd.remove(None)
        if field in {"layout", "mesh"}:
            odd = [[], 1.5, "\u202e"]
        if field in {"chunk_bytes", "max_memory"}:
            odd = [True, [], {}, -1, 0, "1XB", "-5", "9" * 30 + "GiB", 1.5, 10**300]
        if field == "labels":
            odd = [
                1,
                [],
                {"a": 1},
                {"a" * 65: "x"},
                {f"k{i}": "v" for i in range(33)},
                {"a": "v" * 257},
            ]
        body = {"source": "data/a", "target": "data/b", field: self.chance.choice(odd)}
        if field == "targets":
            del body["target"]
        return Hostile(f"wrong type of {field}", post("/v1/conversions", body))

    def path(self) -> str:
        text = self.chance.choice(PATHS)
        if self.chance.random() < 0.3:
            text = f"data/{text}/../{text}"
        return text

    def body_path(self) -> Hostile:
        bad = self.path()
        target, body = self.chance.choice([
            ("/v1/conversions", {"source": bad, "target": "data/b"}),
            ("/v1/conversions", {"source": "data/a", "target": bad}),
            ("/v1/conversions", {"source": "data/a", "targets": [{"target": "data/b"}, {"target": bad}]}),
            ("/v1/plans", {"source": bad, "target": "data/b"}),
            ("/v1/checkpoints:inspect", {"checkpoint": bad}),
            ("/v1/checkpoints:verify", {"checkpoint": bad}),
            ("/v1/checkpoints:verify", {"checkpoint": "data/run", "other": bad or "/"}),
            ("/v1/checkpoints:fingerprint", {"checkpoint": bad}),
            ("/v1/layouts:preview", {"checkpoint": bad, "layout": {"mesh": {"axes": ["m"], "shape": [2]}, "rules": []}}),
        ])  # fmt: skip
        return Hostile(f"path {bad[:60]!r}", post(target, body))

    def query_path(self) -> Hostile:
        bad = self.path() or "/"
        text = quote(bad[:1500], safe="" if self.chance.random() < 0.5 else "/:")
        target = self.chance.choice([
            f"/v1/tensors?name=w&checkpoint={text}", f"/v1/tensors?shard=0&checkpoint={text}",
            f"/v1/checkpoints?root={text}", f"/v1/checkpoints?root=data&prefix=..%2f{text}",
            f"/v1/layouts/{quote(bad[:200], safe='')}%2f..", f"/v1/schedules/{quote(bad[:200], safe='')}%2f..",
        ])  # fmt: skip
        return Hostile(f"query path {bad[:60]!r}", request("GET", target))

    def wrong_method(self) -> Hostile:
        method = self.chance.choice(
            ["TRACE", "CONNECT", "PATCH", "PROPFIND", "BREW", "get", "M" * 200, "OPTIONS"]
        )
        target = self.chance.choice(
            ["/v1/conversions", "/v1/layouts/x", "/v1/schedules/x:run", "/livez", "/v1/plans"]
        )
        return Hostile(f"method {method[:20]}", request(method, target))

    def wrong_media(self) -> Hostile:
        kinds = ["text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "", "x", "a/b;" * 9,
                 "application/xml", "application/octet-stream", "image/svg+xml", "application/jsonp"]  # fmt: skip
        body = b'{"source": "data/a", "target": "data/b"}'
        head = f"POST /v1/conversions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {TOKENS['ann'][0]}\r\n"
        head += f"Content-Type: {self.chance.choice(kinds)}\r\nContent-Length: {len(body)}\r\n\r\n"
        return Hostile("media type", head.encode() + body)

    def bad_header(self) -> Hostile:
        line, target, method = self.chance.choice([
            ("Range: bytes=99999999-", "/v1/tensors?checkpoint=data/run&name=w", "GET"),
            ("If-Match: \"nothing\"", "/v1/layouts/mine", "PUT"),
            ("If-Match: " + "\"x\"," * 100 + "\"y\"", "/v1/layouts/mine", "PUT"),
            ("Idempotency-Key: " + "k" * 256, "/v1/conversions", "POST"),
            ("Idempotency-Key: a b", "/v1/conversions", "POST"),
            ("Idempotency-Key: \xe4\xff", "/v1/conversions", "POST"),
            ("Last-Event-ID: -1", "/v1/conversions/ID/events", "GET"),
            ("Last-Event-ID: x", "/v1/conversions/ID/events", "GET"),
            ("Last-Event-ID: " + "9" * 500, "/v1/conversions/ID/events", "GET"),
            ("Expect: 200-nothing", "/v1/conversions/none", "GET"),
            ("Authorization: Bearer " + "x" * 500, "/v1/conversions", "GET"),
            ("Bad Header: x", "/livez", "GET"),
            ("X: a\x00b", "/livez", "GET"),
        ])  # fmt: skip
        body = None
        if method == "POST":
            body = b'{"source": "data/a", "target": "data/b"}'
        if method == "PUT":
            body = b'{"layout": {"mesh": {"axes": ["m"], "shape": [2]}, "rules": []}}'
        who = None if "Authorization" in line else "ann"
        return Hostile(f"header {line[:40]}", request(method, target, line, body=body, who=who))

    def oversized(self) -> Hostile:
        number = self.chance.randint(5000, 15000)
        return Hostile(*self.chance.choice([
            ("body", post("/v1/conversions", {"source": "data/a", "target": "data/b", "mesh": "m" * number * 4})),
            ("header", request("GET", "/livez", "X-Large: " + "x" * number)),
            ("headers", request("GET", "/livez", *[f"X-{i}: y" for i in range(number // 8)])),
            ("query", request("GET", "/v1/conversions?source=" + "x" * number)),
            ("path", request("GET", "/v1/conversions/" + "x" * number)),
            ("list", post("/v1/conversions", {"source": "data/a", "target": "data/b", "select": ["x"] * 1001})),
            ("pattern", post("/v1/conversions", {"source": "data/a", "target": "data/b", "drop": ["x" * 1001]})),
            ("targets", post("/v1/conversions", {"source": "data/a", "targets": [{"target": f"data/{i}"} for i in range(17)]})),
            ("labels", request("GET", "/v1/conversions?" + "&".join(["label=x"] * 500))),
            ("page", request("GET", f"/v1/conversions?page_size=-{number}")),
        ]))  # fmt: skip

    def smuggled(self) -> Hostile:
        """Two readings of the end of a request; the inner request would count as another caller's."""
        auth = f"Authorization: Bearer {TOKENS['ann'][0]}"
        start = f"POST /v1/conversions HTTP/1.1\r\nHost: x\r\n{auth}\r\n"
        inner = "GET /v1/conversions HTTP/1.1\r\nHost: x\r\n\r\n"
        return Hostile("smuggled", self.chance.choice([
            start + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n" + inner,
            start + "Content-Length: 4\r\nContent-Length: 9\r\n\r\n{}" + inner,
            start + "Content-Length: 4, 9\r\n\r\n{}" + inner,
            start + "Content-Length: -4\r\n\r\n{}", start + "Content-Length: 0x4\r\n\r\n{}",
            start + "Content-Length: +4\r\n\r\n{}", start + "Content-Length: 4 4\r\n\r\n{}",
            start + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + inner,
            start + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + inner,
            start + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner,
            start + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + inner,
            start + "Transfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\nZZ\r\n{}\r\n0\r\n\r\n",
            start + "Transfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n-1\r\n{}\r\n0\r\n\r\n",
            start + "Host: y\r\n\r\n", "GET http://evil/ HTTP/1.1\r\nHost: x\r\nHost: evil\r\n\r\n",
            "GET /livez HTTP/1.1\r\nHost: x\r\nX: y\r\n folded\r\nA b: c\r\n\r\n",
        ]).encode())  # fmt: skip

    def garbage(self) -> Hostile:
        if self.chance.random() < 0.85:
            data = self.chance.choice([
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + self.chance.randbytes(200) + b"\r\n\r\n",
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"SSH-2.0-OpenSSH\r\n\r\n", b"\r\n\r\n\r\n\r\n\0\r\n\r\n",
                b"GET  / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1 x\r\n\r\n", b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
                b"GET / HTTP/1.1\nHost x\n\n", b"x" * self.chance.randint(25_000, 60_000),
                b"*1\r\n$4\r\nPING\r\n\r\n" + self.chance.randbytes(50) + b"\r\n\r\n",
            ])  # fmt: skip
            return Hostile("garbage", data)
        start = f"POST /v1/conversions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKENS['ann'][0]}\r\n"
        return Hostile("without an end", self.chance.choice([
            start + "Transfer-Encoding: chunked\r\n\r\n5\r\n{", start + "Content-Length: 99\r\n\r\n{", start, "GET /li",
        ]).encode(), half=True)  # fmt: skip

    def unknown(self) -> Hostile:
        odd = self.chance.choice(
            ["0" * 28, "none", "x' OR 1=1 --", "../livez", "%s%n", "\u20ac", "{id}", "-1", "a:b:c"]
        )
        text = quote(odd, safe="")
        method, target = self.chance.choice([
            ("GET", f"/v1/conversions/{text}"), ("DELETE", f"/v1/conversions/{text}"), ("GET", f"/v1/{text}"),
            ("POST", f"/v1/conversions/{text}:cancel"), ("POST", f"/v1/conversions/{text}:retry"),
            ("GET", f"/v1/conversions/{text}/events"), ("GET", f"/v1/layouts/{text}"), ("DELETE", f"/v1/layouts/{text}"),
            ("GET", f"/v1/schedules/{text}"), ("POST", f"/v1/schedules/{text}:pause"), ("GET", f"/v1/schedules/{text}/runs"),
            ("GET", f"/static/{text}/.."), ("GET", f"/v1/layouts/{text}/versions"),
        ])  # fmt: skip
        return Hostile(f"unknown {target}", request(method, target))

    def not_allowed(self) -> Hostile:
        return Hostile(*self.chance.choice([
            ("scope", post("/v1/conversions", {"source": "data/a", "target": "data/b"}, who="eve")),
            ("scope", request("PUT", "/v1/layouts/x", body=b'{"layout": {}}', who="eve")),
            ("scope", request("POST", "/v1/checkpoints:fingerprint", body=b'{"checkpoint": "data/run"}', who="eve")),
            ("another's", request("DELETE", "/v1/conversions/ID", who="eve")),
            ("another's", request("GET", "/v1/conversions/ID", who="bob")),
            ("another's", request("GET", "/v1/conversions/ID/events", who="bob")),
            ("another's", request("DELETE", "/v1/layouts/mine", who="bob")),
            ("no token", request("GET", "/v1/conversions", who=None)),
            ("no token", request("GET", "/metrics", who=None)),
            ("cookie", request("GET", "/v1/conversions", "Cookie: session=" + "x" * 40, who=None)),
            ("basic", request("GET", "/v1/conversions", "Authorization: Basic YTpi", who=None)),
        ]))  # fmt: skip

    def bad_query(self) -> Hostile:
        query = self.chance.choice([
            "page_size=-0.5", "page_size=-1", "page_size=x", "page_size=1e9", "page_token=x", "page_token=%ff%fe", "state=odd",
            "created_after=yesterday", "created_before=99999-01-01T00:00:00Z", "unknown=1", "source=%00",
            "page_token=" + "A" * 1025,
        ])  # fmt: skip
        slices = self.chance.choice([
            "slice=0:x", "slice=-1:2", "slice=5:2", "slice=0:99999999999999999999", "slice=::", "slice=0:1,0:1,0:1,0:1",
            "dtype=odd", "dtype=float32x", "name=none", "name=w&name=w&shard=1", "shard=-1", "shard=99999999999",
            "shard=0&layout=none", "shard=0&layout=%7B", "shard=0&mesh=m", "shard=0&select=(", "shard=0&cast=x",
        ])  # fmt: skip
        if self.chance.random() < 0.5:
            return Hostile(f"query {query[:40]}", request("GET", f"/v1/conversions?{query}"))
        name = "" if "shard" in slices or "name=" in slices else "name=w&"
        path = self.chance.choice(["tensors", "tensors/proof", "tensors/identity"])
        return Hostile(
            f"slices {slices} of {path}",
            request("GET", f"/v1/{path}?checkpoint=data/run&{name}{slices}"),
        )

    def odd_layout(self) -> Hostile:
        mesh = {"axes": ["m"], "shape": [2]}
        layout: Any = self.chance.choice([
            {"mesh": {"axes": ["m"], "shape": [0]}}, {"mesh": {"axes": ["m"], "shape": [-2]}}, {"mesh": {"axes": ["m", "m"], "shape": [2, 2]}},
            {"mesh": {"axes": ["m"], "shape": [10**30]}}, {"mesh": {"axes": [], "shape": [2]}}, {"mesh": 1}, {"mesh": mesh, "rules": 1},
            {"mesh": mesh, "rules": [{"match": "(", "axes": []}]}, {"mesh": mesh, "rules": [{"match": "x", "axes": ["none"]}]},
            {"mesh": mesh, "rules": [{"axes": []}]}, {"mesh": mesh, "rules": [], "more": 1}, {"mesh": mesh, "unmatched": "odd"},
            {"mesh": mesh, "rules": [{"match": "x", "axes": ["m", "m"]}]}, "none@99999999999999999999", "no/such", "../x",
        ])  # fmt: skip
        body = {"source": "data/a", "target": "data/b", "layout": layout}
        return Hostile(f"layout {json.dumps(layout)[:60]}", post("/v1/conversions", body))
