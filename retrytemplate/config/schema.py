"""The JSON Schema of configuration files."""

from __future__ import annotations

from typing import Any

from retrytemplate.config.kinds import KINDS, OBSERVE, PRESETS, STORES, Kind
from retrytemplate.config.parameters import object_schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a file with all sections, for editors and checks.

    Everything that it rejects, ``load`` rejects, too.  ``load`` also checks names and the settings
    of an endpoint together.

    >>> json_schema()["properties"]["bulkhead"]["properties"]["defaults"]["properties"]["limit"]
    {'type': 'integer', 'minimum': 1, 'description': 'concurrent calls; default 50, at least 1.'}
    """
    sections: dict[str, Any] = {
        "version": {"const": 1},
        "stores": _by_name(object_schema(STORES.parameters)),
        "presets": _by_name(object_schema(PRESETS.parameters)),
    }
    sections |= {name: _section(kind) for name, kind in KINDS.items()}
    sections["observe"] = object_schema(OBSERVE.parameters)
    return {
        "$schema": DIALECT,
        "title": "Endpoints of retrytemplate",
        "type": "object",
        "properties": sections,
        "additionalProperties": False,
    }


def _section(kind: Kind) -> dict[str, Any]:
    settings = object_schema(kind.parameters, complete=False)
    made = object_schema(kind.own)
    made["properties"] |= {"defaults": settings, "endpoints": _by_name(settings)}
    return made


def _by_name(schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "propertyNames": {"pattern": r"\S"},
        "additionalProperties": schema,
    }
