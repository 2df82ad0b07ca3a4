"""GCS: its XML API and its JSON API at one address."""

from __future__ import annotations

from tests.emulators.apis.gcs_xml import GcsXml


class Gcs(GcsXml):
    """Both APIs; requests say by their path which one they mean."""
