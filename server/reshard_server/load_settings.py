"""Reads the settings: from the command line, the environment and a file; and lists them all."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsError,
)

from reshard.errors import ReshardError
from reshard.geometry.sizes import shortest_bytes
from reshard_server.errors.value_errors import expected
from reshard_server.settings import PREFIX, SIZE, Settings

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
