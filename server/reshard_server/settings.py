"""All settings of a server, each described once; read, and listed.

A value comes from the command line, else the environment (``RESHARD_`` and the name in capitals), else a TOML file
(``--settings FILE`` or ``RESHARD_SETTINGS``), else the default.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from reshard.errors import ReshardError
from reshard.geometry.sizes import parse_bytes, shortest_bytes
from reshard.storage.hub.address import MAIN
from reshard.storage.hub.store import hub_branch
from reshard.storage.location import Location, is_in_hub, locate
from reshard_server.errors.value_errors import expected

MIB = 1 << 20

PREFIX = "RESHARD_"
"""Prefix of environment variables that are settings."""

Scope = Literal["read", "convert", "admin"]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""The folder in which Kubernetes gives a pod its token and the certificates of the API server."""

_DAY_LENGTH = len("2027-01-31")


def _moment(value: object) -> datetime | None:
    """A day's first moment, or a time with its zone, from TOML's dates and JSON's text; None for anything else."""
    is_day = isinstance(value, str) and len(value) == _DAY_LENGTH
    try:
        parsed = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return None
    if isinstance(parsed, datetime):
        if is_day:
            return parsed.replace(tzinfo=UTC)
        return parsed if parsed.tzinfo is not None else None
    return datetime.combine(parsed, time.min, UTC) if isinstance(parsed, date) else None


def _place(value: object) -> Location:
    """The place of a root; a URL's form is checked, and nothing is looked up."""
    if not isinstance(value, str | Path | Location):
        raise ValueError(
            "expected a folder, or a URL that begins with gs://, s3://, az:// or hf://"
        )
    try:
        if isinstance(value, str) and is_in_hub(value):
            if value.endswith(f"@{MAIN}"):
                raise ValueError(
                    "the root of a repository has every branch, below @; leave @main out, or add a folder"
                )
            return hub_branch(value)  # not at the commit of the start
        return value if isinstance(value, Location) else locate(value)
    except ReshardError as error:
        raise ValueError(str(error)) from None


def _bytes(value: object) -> object:
    """A size in text, such as ``512MiB``; pydantic checks any other type."""
    try:
        return parse_bytes(value) if isinstance(value, str) else value
    except ReshardError as error:
        raise ValueError(str(error)) from None


def _network(value: object) -> IPv4Network | IPv6Network:
    """A network without host bits."""
    try:
        if isinstance(value, str | IPv4Network | IPv6Network):
            return ip_network(value)
    except ValueError:
        pass
    raise ValueError(f"expected a network such as 10.0.0.0/8, found {str(value)[:60]!r}")


SIZE = BeforeValidator(_bytes)
Network = Annotated[IPv4Network | IPv6Network, PlainValidator(_network)]
Size = Annotated[int, SIZE]
RootPlace = Annotated[Location, PlainValidator(_place)]
LabelKey = Annotated[str, Field(min_length=1, max_length=64)]
LabelValue = Annotated[str, Field(max_length=256)]
RootName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]


class TokenSettings(BaseModel):
    """A bearer token; only its hash is stored."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(description="Its name in logs and records.", min_length=1, max_length=64)
    sha256: str = Field(
        description="SHA-256 of the token, 64 hex digits.", pattern="^[0-9a-f]{64}$"
    )
    scopes: frozenset[Scope] = Field(description="The scopes that it has.")
    read: frozenset[str] = Field(
        default=frozenset(), description="Roots that it may read; '*' for all."
    )
    write: frozenset[str] = Field(
        default=frozenset(), description="Roots that it may write; '*' for all."
    )
    expires: datetime | None = Field(
        default=None,
        description="Its end: a time with its zone, or a day, at whose beginning in UTC it ends.",
    )

    s3_secret: str | None = Field(None, min_length=16, repr=False, description="Its secret for S3.")

    @field_validator("s3_secret")
    @classmethod
    def _has_fit_name(cls, secret: str | None, info: ValidationInfo) -> str | None:
        """Refuses a name that cannot be an access key in a signature."""
        if secret and not re.fullmatch("[A-Za-z0-9._-]*", name := info.data.get("name", "")):
            raise ValueError(f"expected a name of letters, digits and . _ -, found {name!r}")
        return secret

    @field_validator("expires", mode="before")
    @classmethod
    def _is_moment(cls, value: object) -> object:
        """Accepts TOML's dates and JSON's text; refuses times without a zone."""
        parsed = _moment(value)
        if parsed is None and value is not None:
            raise ValueError(
                f"expected a day such as 2027-01-31, or a time with its zone such as 2027-01-31T12:00:00Z, found {str(value)[:40]!r}"
            )
        return parsed


class KubernetesSettings(BaseModel):
    """The cluster that does the parts of conversions, each conversion as one Indexed Job."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    namespace: str = Field(
        description="The namespace of the Jobs.",
        pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",  # a label of RFC 1123
    )
    image: str = Field(
        description="The image of the pods; it has the command reshard.", min_length=1
    )
    template: Path = Field(description="A file with the Job to which the service adds its fields.")
    parallelism: int | None = Field(
        None, ge=1, description="Parts of one conversion that run at once; by default all."
    )
    api: str | None = Field(
        None,
        # http would show the token to the network.
        pattern=r"^(https://[^/?#\s@]+|http://(127\.0\.0\.1|localhost|\[::1\])(:\d+)?)(/[^?#\s]*)?$",
        description="The URL of the API server, with https unless it is on this machine; by default that of the cluster in "
        "which the service runs.",
    )
    token_file: Path = Field(
        SERVICE_ACCOUNT / "token",
        description="A file with the token for the API; read again for every request.",
    )
    ca_file: Path = Field(
        SERVICE_ACCOUNT / "ca.crt",
        description="A file with the certificates that the API server's is checked with.",
    )


class RaySettings(BaseModel):
    """The Ray cluster that does the parts of conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    address: str = Field(
        description="Its address, such as 10.0.0.1:6379, or auto for the cluster of each host.",
        min_length=1,
    )


class EngineSettings(BaseModel):
    """The places, besides the server's own processes, that do the parts of conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kubernetes: KubernetesSettings | None = Field(
        None, description="A Kubernetes cluster, with an Indexed Job for each conversion."
    )
    ray: RaySettings | None = Field(None, description="A Ray cluster, with a task for each part.")


class Settings(BaseSettings):
    """The settings of a server."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, env_nested_delimiter="__"
    )

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    state: Path = Field(Path("reshard-state"), description="Folder for the server's records.")
    database_url: SecretStr | None = Field(
        None,
        description="A Postgres URL, for several replicas; without it, SQLite in the state folder.",
    )
    database_password_file: Path | None = Field(
        None, description="A file with the password for the Postgres URL."
    )
    migrate_at_start: bool = Field(
        True,
        description="Migrate records of an older version at the start; off: only --migrate does it.",
    )
    roots: dict[RootName, RootPlace] = Field(
        default_factory=dict,
        description="Storage roots by name, folders or gs://, s3://, az:// and hf:// URLs; clients name paths below them.",
    )
    buckets: Path | None = Field(
        None,
        description="A TOML file with the endpoints and credentials of roots in buckets, by URL.",
    )
    tokens: tuple[TokenSettings, ...] = Field((), description="Bearer tokens, by their hashes.")
    tokens_file: Path | None = Field(
        None, description="A TOML file with further [[tokens]]; read again when it changes."
    )
    insecure: bool = Field(
        False, description="No token is needed; allowed only if the host is a loopback address."
    )
    forwarded_allow_ips: str | None = Field(
        None,
        description="Proxies whose X-Forwarded-For, -Proto and -Host are trusted: addresses and networks between "
        "commas, or * for every peer.",
    )
    public_url: str | None = Field(
        None,
        pattern=r"^https?://[^/?#\s@]+$",
        description="The URL at which people reach the pages, such as https://reshard.example; cookies are for this host only.",
    )
    session_hours: float = Field(
        12.0, gt=0, le=720, description="Hours after which people must sign in again."
    )
    running: int = Field(
        2, ge=1, le=64, description="Conversions, or parts of one, that this host runs at once."
    )
    running_per_token: int = Field(
        2,
        ge=1,
        description="Conversions and parts of one token that run at once, over all replicas.",
    )
    labels: dict[LabelKey, LabelValue] = Field(
        default_factory=dict,
        description="What this host has, as text by name; a request may name labels that its host must have (host_labels).",
    )
    queued_per_token: int = Field(500, ge=1, description="Conversions of one token that may wait.")
    max_memory: Size = Field(
        1024 * MIB, ge=16 * MIB, description="Most bytes of memory that one conversion may ask for."
    )
    workers: int = Field(
        2,
        ge=1,
        le=256,
        description="Tasks that one conversion runs at once; with more than 4, a large one uses several processes.",
    )
    max_growth: float = Field(
        16.0,
        gt=0,
        allow_inf_nan=False,
        description="A target may be this many times as large as its source, and 1 GiB more.",
    )
    run_seconds: float = Field(
        0, ge=0, description="Most seconds that one conversion may run; 0: no limit."
    )
    no_progress_seconds: float = Field(
        1800,
        ge=0,
        description="Most seconds that one conversion may run without progress; 0: no limit.",
    )
    attempts: int = Field(5, ge=1, description="Attempts for a conversion whose process dies.")
    keep_days: int = Field(
        90, ge=0, description="Days after which records of ended conversions are deleted; 0: never."
    )
    keep_runs: int = Field(
        1000, ge=0, description="Runs that the history of each schedule keeps; 0: all."
    )
    layouts: int = Field(5000, ge=1, description="Named layouts of all tokens together.")
    layouts_per_token: int = Field(1000, ge=1, description="Named layouts of one token.")
    layout_versions: int = Field(1000, ge=1, description="Versions of one named layout.")
    layout_bytes: Size = Field(
        512 * MIB, ge=1024, description="Bytes of all versions of all named layouts."
    )
    layout_bytes_per_token: Size = Field(
        128 * MIB, ge=1024, description="Bytes of all versions of one token's layouts."
    )
    maps: int = Field(5000, ge=1, description="Named maps of all tokens together.")
    maps_per_token: int = Field(1000, ge=1, description="Named maps of one token.")
    map_versions: int = Field(1000, ge=1, description="Versions of one named map.")
    map_bytes: Size = Field(
        512 * MIB, ge=1024, description="Bytes of all versions of all named maps."
    )
    map_bytes_per_token: Size = Field(
        128 * MIB, ge=1024, description="Bytes of all versions of one token's maps."
    )
    views: int = Field(5000, ge=1, description="Named views of all tokens together.")
    views_per_token: int = Field(1000, ge=1, description="Named views of one token.")
    view_versions: int = Field(1000, ge=1, description="Versions of one named view.")
    view_bytes: Size = Field(512 * MIB, ge=1024, description="Bytes of all versions of views.")
    view_bytes_per_token: Size = Field(128 * MIB, ge=1024, description="The same for one token.")
    schedules: int = Field(2000, ge=1, description="Schedules of all tokens together.")
    schedules_per_token: int = Field(500, ge=1, description="Schedules of one token.")
    schedule_bytes: Size = Field(128 * MIB, ge=1024, description="Bytes of all schedules.")
    schedule_bytes_per_token: Size = Field(
        32 * MIB, ge=1024, description="Bytes of one token's schedules."
    )
    body_bytes: Size = Field(1 * MIB, ge=1024, description="Most bytes in the body of a request.")
    header_bytes: Size = Field(
        16384, ge=1024, description="Most bytes in all headers of a request together."
    )
    head_seconds: float = Field(
        10.0,
        gt=0,
        description="Seconds within which the line and the headers of a request must arrive.",
    )
    body_seconds: float = Field(
        60.0, gt=0, description="Seconds within which the body of a request must arrive."
    )
    stalled_seconds: float = Field(
        60.0, gt=0, description="Seconds that a client may pause while it reads an answer."
    )
    requests_per_minute: int = Field(
        1200, ge=1, description="Requests of one token per minute, without those that read views."
    )
    streams: int = Field(64, ge=1, description="Streams (events, slices) open at once.")
    streams_per_token: int = Field(48, ge=1, description="Streams of one token open at once.")
    stream_memory: Size = Field(
        64 * MIB, ge=8 * MIB, description="Bytes for the buffers of one stream of slices."
    )
    open_views: int = Field(64, ge=1, description="Revisions of views that are kept planned.")
    view_cache: Size = Field(256 * MIB, ge=MIB, description="Bytes of views that are kept decoded.")
    looks: int = Field(
        4, ge=1, le=64, description="Looks at metadata (inspect, plan, preview) at once."
    )
    looks_per_token: int = Field(3, ge=1, description="Looks of one token at once.")
    reads: int = Field(
        2,
        ge=1,
        le=64,
        description="Verifications, identities and fingerprints at once; each reads every byte.",
    )
    reads_per_token: int = Field(
        1, ge=1, description="Verifications, identities and fingerprints of one token at once."
    )
    engines: EngineSettings | None = Field(
        None,
        description="Places that do the parts of large conversions, by kind: ray and kubernetes are clusters.",
    )
    metrics_open: bool = Field(False, description="/metrics needs no token.")
    drain_seconds: float = Field(
        20.0, ge=0, description="Seconds that a stopping server waits for open requests."
    )
    lease_seconds: float = Field(
        10.0,
        ge=2,
        description="Seconds of silence after which another replica takes over a replica's conversions.",
    )
    notify_secrets_file: Path | None = Field(
        None,
        description="A file with the secrets that sign notifications, whsec_… one a line; read at each try. Without it notify is refused.",
    )
    notify_hosts: tuple[str, ...] = Field(
        (),
        description="Host names that notify may name, such as hooks.example or *.example; empty: every public one.",
    )
    notify_private: tuple[Network, ...] = Field(
        (),
        description="Networks that notify may reach although they are not public, such as 10.0.0.0/8; there http is allowed, too.",
    )
    audit_log: Path | None = Field(
        None,
        description="File for sign-ins and changes, as JSON lines; without it they go into the log.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest level that is logged."
    )
    log_format: Literal["json", "text"] = Field(
        "json", description="json: one object per line; text: one line each."
    )

    @field_validator("forwarded_allow_ips")
    @classmethod
    def _are_networks(cls, text: str | None) -> str | None:
        for name in (text or "").split(","):
            try:
                if name.strip() not in ("", "*"):
                    ip_network(name.strip())
            except ValueError:
                raise ValueError(
                    f"expected addresses or networks such as 10.0.0.0/8 between commas, found {name.strip()[:60]!r}"
                ) from None
        return text


NOT_SETTINGS = frozenset({"RESHARD_SETTINGS", "RESHARD_SERVER", "RESHARD_TOKEN"})
"""Variables of the commands: the settings' file, and the server and the token of a client."""


def load_settings(flags: Mapping[str, Any], file: Path | None) -> Settings:
    """The settings from flags, environment and file, in this order; maps such as roots are merged.

    Raises ReshardError that names all invalid values, but no secrets.
    """
    document = _document(file) if file else {}

    class FromFile(Settings):
        """Settings whose last source is the file."""

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  of the interface
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003  of the interface
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            in_file = InitSettingsSource(settings_cls, init_kwargs=document)
            return init_settings, env_settings, in_file

    try:
        return FromFile(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        raise ReshardError(_wrong(error)) from None
    except SettingsError as error:
        raise ReshardError(
            f"{error}; a setting of several values is JSON in the environment, such as "
            'RESHARD_ROOTS=\'{"data": "/srv/checkpoints"}\''
        ) from None


def _document(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ReshardError(f"the settings file {str(file)!r} cannot be used: {error}") from error


def _wrong(error: ValidationError) -> str:
    found = (
        f"{'.'.join(map(str, e['loc']))}: {expected(e)}" for e in error.errors(include_input=False)
    )
    return f"the settings cannot be used: {'; '.join(found)}; docs/reference/service/settings.md describes each"


def unknown_variables(environment: Iterable[str]) -> list[str]:
    """Variables with the prefix of settings that name no setting; perhaps misspelled."""
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields} | NOT_SETTINGS
    return sorted(
        variable
        for variable in environment
        if variable.startswith(PREFIX) and variable.partition("__")[0] not in known
    )


def described_settings() -> list[tuple[str, str, str, str]]:
    """The name, environment variable, default and description of every setting."""
    return [
        (name, f"{PREFIX}{name.upper()}", _shown(field), field.description or "")
        for name, field in Settings.model_fields.items()
    ]


def _shown(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, bool):
        return "on" if default else "off"
    if SIZE in field.metadata:
        return shortest_bytes(default)
    return "none" if default in (None, (), {}) else str(default)
