"""JSON schemas of arguments in the plain form that every engine's grammar compiler understands."""

import json
from functools import cache
from typing import Any, Final

from pydantic import BaseModel

_KEPT: Final = ("type", "description", "enum", "minimum", "maximum", "minLength", "maxItems")


def parameters(model: type[BaseModel]) -> dict[str, Any]:
    """The model's schema with references resolved and without titles, defaults and null variants; a fresh copy.

    Not every engine knows ``$ref`` and ``anyOf``, and what only Pydantic says costs tokens.
    """
    plain: dict[str, Any] = json.loads(_text(model))
    return plain


def shape(schema: dict[str, Any]) -> str:
    """The schema in one line, for example ``{path: string, start_line?: integer}``."""
    if schema["type"] == "object":
        required = schema["required"]
        fields = (
            f"{name}{'' if name in required else '?'}: {shape(part)}" for name, part in schema["properties"].items()
        )
        return "{" + ", ".join(fields) + "}"
    if schema["type"] == "array":
        return f"[{shape(schema['items'])}]"
    if "enum" in schema:
        return "|".join(schema["enum"])
    return str(schema["type"])


@cache
def _text(model: type[BaseModel]) -> str:
    schema = model.model_json_schema()
    return json.dumps(_simplified(schema, schema.get("$defs", {})))


def _simplified(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        target = definitions[schema["$ref"].removeprefix("#/$defs/")]
        schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
    if "anyOf" in schema:
        variant = next(option for option in schema["anyOf"] if option.get("type") != "null")
        schema = {**variant, **{key: value for key, value in schema.items() if key != "anyOf"}}
    simple: dict[str, Any] = {key: schema[key] for key in _KEPT if key in schema}
    if "items" in schema:
        simple["items"] = _simplified(schema["items"], definitions)
    if simple.get("type") == "object":
        simple.pop("description", None)
        simple["properties"] = {
            name: _simplified(part, definitions) for name, part in schema.get("properties", {}).items()
        }
        simple["required"] = schema.get("required", [])
        simple["additionalProperties"] = False
    return simple
