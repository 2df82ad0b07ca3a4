"""The example for nginx: the very file, run before a server, with other ports and a certificate of its own."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.deploy.documents import DEPLOY
from tests.ports import kept_port
from tests.server.live import Live, live
from tests.server.tokens import TOKENS

CONF = (DEPLOY / "nginx" / "reshard.conf").read_text()
NAME = "reshard.example.com"


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    for before, after in pairs:
        assert before in text, before
        text = text.replace(before, after)
    return text


@contextmanager
def nginx(folder: Path, server: Live, port: int) -> Iterator[None]:
    """nginx with the example, which listens on this port."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    assert program is not None, "nginx is missing; make tools installs it"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={NAME}",
         "-addext", f"subjectAltName=DNS:{NAME}", "-keyout", folder / "key", "-out", folder / "crt"],
        check=True, capture_output=True,
    )  # fmt: skip
    ours = replaced(
        CONF,
        ("/etc/nginx/tls/reshard.crt", str(folder / "crt")),
        ("/etc/nginx/tls/reshard.key", str(folder / "key")),
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("127.0.0.1:8080", server.url.removeprefix("http://")),
    )
    places = " ".join(
        f"{kind}_temp_path {folder / kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    conf = folder / "nginx.conf"
    conf.write_text(
        f"daemon off; pid {folder / 'pid'}; error_log stderr;\nevents {{}}\n"
        f"http {{ access_log off; {places}\n{ours}\n}}\n"
    )
    with (folder / "nginx.log").open("wb") as log:
        process = subprocess.Popen([program, "-e", "stderr", "-c", conf], stdout=log, stderr=log)
    try:
        _until_it_listens(port, process, folder / "nginx.log")
        yield
    finally:
        process.terminate()
        process.wait(60)


def _until_it_listens(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"nginx did not start: {log.read_text()}")


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Asks nginx, before a server that believes it."""
    folder = tmp_path_factory.mktemp("nginx")
    settings = {"forwarded_allow_ips": "127.0.0.1", "requests_per_minute": 4}
    with (
        live(folder / "server", module="tests.server.idle", **settings) as server,
        kept_port() as port,
        nginx(folder, server, port),
    ):
        trusted = ssl.create_default_context(cafile=folder / "crt")
        # An address that is no proxy's, as those of clients are.
        transport = httpx.HTTPTransport(verify=trusted, local_address="127.0.0.2")
        with httpx.Client(
            base_url=f"https://127.0.0.1:{port}", transport=transport, timeout=60
        ) as client:
            client.headers["Host"] = NAME
            yield client


def ask(client: httpx.Client, method: str, path: str, **more: object) -> httpx.Response:
    return client.request(method, path, extensions={"sni_hostname": NAME}, **more)


def test_people_sign_in_over_tls(behind: httpx.Client) -> None:
    data = {"token": TOKENS["ann"][0]}
    own = {"Origin": f"https://{NAME}", "Accept": "text/html"}
    answer = ask(behind, "POST", "/sign-in", data=data, headers=own)
    assert answer.status_code == 303
    assert answer.headers["Set-Cookie"].startswith("__Host-reshard_session=")
    assert answer.headers["Set-Cookie"].endswith("; SameSite=lax; Secure")
    plain = {**own, "Origin": f"http://{NAME}"}
    assert ask(behind, "POST", "/sign-in", data=data, headers=plain).status_code == 403


def test_nobody_chooses_the_address_that_he_is_counted_by(behind: httpx.Client) -> None:
    """The bucket holds four requests and refills by one in 15 s, more slowly than the slowest machine asks."""
    behind.cookies.clear()  # those who are signed in are counted by their token
    answers = (
        ask(behind, "GET", "/v1/conversions", headers={"X-Forwarded-For": f"9.9.9.{i}"}).status_code
        for i in range(250)
    )
    assert 429 in answers
