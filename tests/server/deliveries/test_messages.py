"""The signature of a message, by the examples of Standard Webhooks; and the files of secrets."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from reshard_server.deliveries.messages import read_secrets, signed_headers

from reshard.cli.app import run
from reshard.errors import ReshardError
from tests.server.deliveries.receiver import SECRETS, secrets_file

PUBLISHED = [
    ("plJ3nmyCDGBKInavdOK15jsl", "msg_loFOjxBNrRLzqYUf", 1731705121, b'{"event_type":"ping","data":{"success":true}}',
     "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0="),
    ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}',
     "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
]  # fmt: skip
"""Secret, id, time, body and signature, as the specification and its libraries give them."""


@pytest.mark.parametrize(("secret", "id_", "at", "body", "signature"), PUBLISHED)
def test_published_examples(secret: str, id_: str, at: int, body: bytes, signature: str) -> None:
    made = signed_headers([base64.b64decode(secret)], id_, at, body)
    assert made == {
        "webhook-id": id_, "webhook-timestamp": str(at), "webhook-signature": signature,
    }  # fmt: skip


def test_every_secret_signs(tmp_path: Path) -> None:
    found = read_secrets(secrets_file(tmp_path))
    assert found == SECRETS
    both = signed_headers(found, "x", 1, b"{}")["webhook-signature"].split(" ")
    assert both == [signed_headers([one], "x", 1, b"{}")["webhook-signature"] for one in found]


SHORT = base64.b64encode(b"S3CRET").decode()
NO_SECRET = "is no secret of Standard Webhooks; expected whsec_ and the base64 of 24 to 64 bytes, such as whsec_$(openssl rand -base64 32)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "(notify_secrets_file) is empty; write a secret, such as whsec_$(openssl rand -base64 32)"),
        (f"whsec_{SHORT}\n", f"(notify_secrets_file) {NO_SECRET}"),
        (f"whsec_{'A' * 88}=\n", f"(notify_secrets_file) {NO_SECRET}"),
        (f"{'S3CRET' * 8}\n", f"(notify_secrets_file) {NO_SECRET}"),
        (f"whsec_{'A' * 32}\nwhsec_S3CRET!\n", f"(notify_secrets_file) {NO_SECRET}"),
    ],
)  # fmt: skip
def test_files_without_a_secret(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "secrets"
    file.write_text(text)
    with pytest.raises(ReshardError) as refused:
        read_secrets(file)
    assert str(refused.value).endswith(f"{str(file)!r} {said}")
    assert "S3CRET" not in str(refused.value)


def test_a_server_does_not_start_without_its_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RESHARD_NOTIFY_SECRETS_FILE", str(tmp_path / "nowhere"))
    words = ["serve", "--insecure", "--port", "0", "--state", str(tmp_path / "state")]
    assert run(words) == 1
    assert "nowhere' (notify_secrets_file) cannot be read: " in capsys.readouterr().err
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("RESHARD_NOTIFY_SECRETS_FILE", str(secrets_file(tmp_path / "data")))
    assert run([*words, "--root", f"data={tmp_path / 'data'}"]) == 1
    assert "the file with the secrets of notifications " in capsys.readouterr().err
