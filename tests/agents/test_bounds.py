"""Every argument of every tool is fed with values that no database, file name or JSON text can hold."""

import json

import pytest

from journeyman.agents.bounds import MAX_CHARACTERS, MAX_DEPTH, MAX_INTEGER
from journeyman.agents.roles import PROFILES, Role
from journeyman.agents.tools import ParsedCall, ToolError, parse_call, tool_schemas


def nested(levels):
    value = "x"
    for _ in range(levels):
        value = [value]
    return value


HOSTILE = {
    "beyond 64 bits": 2**63,
    "far beyond 64 bits": 10**400,
    "below 64 bits": -(2**63) - 1,
    "a float beyond 64 bits": 1e300,
    "infinity": float("inf"),
    "not a number": float("nan"),
    "a NUL": "a\0b",
    "half of a surrogate pair": "a\ud800",
    "deep lists": nested(MAX_DEPTH + 1),
    "very deep lists": nested(800),
    "deep objects": {"a": {"b": nested(MAX_DEPTH)}},
    "many values": ["x"] * 21_000,
    "a hostile key": {"a\0b": 1},
    "an object with a surrogate as key": {"\udfff": 1},
    "a list of NULs": ["\0"] * 30,
}


def example(schema):
    """The smallest value that a schema allows."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            required = schema.get("required", [])
            return {name: example(part) for name, part in schema["properties"].items() if name in required}
        case "array":
            return [example(schema["items"])] * max(1, schema.get("minItems", 1))
        case "integer":
            return max(1, schema.get("minimum", 1))
        case "boolean":
            return True
        case _:
            return "a" * max(1, schema.get("minLength", 1))


def places(schema, path=()):
    """Every place in the arguments where a value stands."""
    yield path
    if schema.get("type") == "object":
        for name, part in schema["properties"].items():
            yield from places(part, (*path, name))
    elif schema.get("type") == "array":
        yield from places(schema["items"], (*path, 0))


def put(value, schema, path, hostile):
    if not path:
        return hostile
    first, rest = path[0], path[1:]
    if isinstance(first, int):
        inner = value[0] if isinstance(value, list) and value else example(schema["items"])
        return [put(inner, schema["items"], rest, hostile)]
    part = schema["properties"][first]
    return {**value, first: put(value.get(first, example(part)), part, rest, hostile)}


CASES = [
    (role, schema["function"]["name"], schema["function"]["parameters"], path)
    for role in Role
    for schema in tool_schemas(role)
    for path in places(schema["function"]["parameters"])
    if path
]


@pytest.mark.parametrize(("role", "name", "schema", "path"), CASES, ids=[f"{r}-{n}-{p}" for r, n, _, p in CASES])
def test_hostile_values_are_refused_with_words_that_can_be_stored(role, name, schema, path):
    for kind, hostile in HOSTILE.items():
        result = parse_call(role, name, json.dumps(put(example(schema), schema, path, hostile)))
        assert isinstance(result, ToolError), kind
        assert len(result.message.encode()) < 20_000
        assert "\0" not in result.message


def test_objects_that_a_client_has_parsed_are_bounded_alike():
    for kind, hostile in HOSTILE.items():
        assert isinstance(parse_call(Role.CODER, "read_notes", {"after": hostile}), ToolError), kind


@pytest.mark.parametrize("role", PROFILES)
def test_the_largest_number_of_the_database_is_a_number(role):
    result = parse_call(role, "read_notes", {"after": MAX_INTEGER})
    assert isinstance(result, ParsedCall)


def test_texts_are_bounded_together():
    halves = {"path": "a", "old": "x" * (MAX_CHARACTERS // 2), "new": "y" * (MAX_CHARACTERS // 2)}
    for raw in (halves, json.dumps(halves)):
        result = parse_call(Role.CODER, "edit_file", raw)
        assert isinstance(result, ToolError)
        assert "allowed; use several calls" in result.message


def test_equal_refusals_are_equal_for_the_circuit_breaker():
    one = parse_call(Role.CODER, "frobnicate", "{}")
    assert isinstance(one, ToolError)
    assert one.digest == parse_call(Role.CODER, "frobnicate", "{}").digest
    assert one.digest != parse_call(Role.CODER, "frobnicate_it", "{}").digest
