import json
import random
import string

import pytest

from journeyman.agents import arguments
from journeyman.agents.plans import Plan
from journeyman.agents.roles import PROFILES, Role
from journeyman.agents.tools import TOOLS, ParsedCall, ToolError, parse_call, signature, tool_schemas

CONTRACT = {
    "shell": "{command: string, timeout_s?: integer, background?: boolean}",
    "read_file": "{path: string, start_line?: integer, end_line?: integer}",
    "write_file": "{path: string, content: string}",
    "edit_file": "{path: string, old: string, new: string, replace_all?: boolean}",
    "search": "{pattern: string, path?: string, glob?: string}",
    "list_files": "{path?: string, depth?: integer}",
    "read_output": "{output_id: string, start: integer, end: integer}",
    "recall": "{query: string}",
    "remember": "{text: string}",
    "post_note": "{kind: decision|finding|promise|note, text: string, closes?: integer}",
    "read_notes": "{kind?: decision|finding|promise|note, after?: integer}",
    "submit_plan": "{subtasks: [{id: string, title: string, instructions: string, depends_on?: [string], "
    "acceptance?: [string]}], acceptance?: [string]}",
    "submit_work": "{summary: string}",
    "submit_review": "{verdict: approve|request_changes, findings?: [{severity: blocker|major|minor, path?: string, "
    "line?: integer, message: string}]}",
}


def refused(role, name, raw) -> ToolError:
    result = parse_call(role, name, raw)
    assert isinstance(result, ToolError), result
    result.message.encode()  # can be sent and stored
    return result


def accepted(role, name, raw) -> ParsedCall:
    result = parse_call(role, name, raw)
    assert isinstance(result, ParsedCall), result
    return result


def test_names_arguments_and_order_are_those_of_the_contract():
    assert list(TOOLS) == list(CONTRACT)
    assert {name: signature(name) for name in TOOLS} == {name: f"{name} {shape}" for name, shape in CONTRACT.items()}


@pytest.mark.parametrize("role", Role)
def test_schemas_are_plain_stable_and_strict(role):
    schemas = tool_schemas(role)
    assert [schema["function"]["name"] for schema in schemas] == list(PROFILES[role].tools)
    assert json.dumps(schemas) == json.dumps(tool_schemas(role.value))
    text = json.dumps(schemas)
    for unwanted in ("$ref", "$defs", "anyOf", '"title": "', '"default"', "null"):
        assert unwanted not in text.replace('"title": {', "")
    for schema in schemas:
        assert schema["type"] == "function"
        assert schema["function"]["description"]
        assert schema["function"]["parameters"]["additionalProperties"] is False
        for part in schema["function"]["parameters"]["properties"].values():
            assert part["description"]


def test_a_schema_that_a_caller_changes_stays_what_it_was():
    tool_schemas("coder")[0]["function"]["parameters"]["properties"].clear()
    assert tool_schemas("coder")[0]["function"]["parameters"]["properties"]


def test_a_good_call():
    call = accepted("coder", "shell", '{"command": "ls", "timeout_s": 30.0, "background": null}')
    assert isinstance(call.arguments, arguments.Shell)
    assert call.values == {"command": "ls", "timeout_s": 30}
    assert not call.terminal


def test_equal_calls_have_equal_digests_however_they_are_spelt():
    one = accepted("coder", "shell", '{"command": "ls", "timeout_s": 30}')
    other = accepted("coder", "shell", '{ "timeout_s":30.0,"command":"l\\u0073","background":null }')
    assert one.digest == other.digest != accepted("coder", "shell", '{"command": "ls"}').digest


@pytest.mark.parametrize("raw", ["", "  ", None, "{}", {}])
def test_no_text_counts_as_no_arguments(raw):
    assert accepted("coder", "list_files", raw).values == {}


def test_terminal_calls_are_marked():
    assert accepted("coder", "submit_work", '{"summary": "done"}').terminal
    assert accepted("reviewer", "submit_review", '{"verdict": "approve"}').terminal


@pytest.mark.parametrize(
    ("role", "name", "code", "said"),
    [
        ("coder", "bash", "unknown_tool", "Did you mean `shell`?"),
        ("coder", "Shell", "unknown_tool", "Did you mean `shell`?"),
        ("coder", "functions.read_file", "unknown_tool", "Did you mean `read_file`?"),
        ("coder", "readfile", "unknown_tool", "Did you mean `read_file`?"),
        ("coder", "str_replace", "unknown_tool", "Did you mean `edit_file`?"),
        ("planner", "finish", "unknown_tool", "Did you mean `submit_plan`?"),
        ("planner", "str_replace", "unknown_tool", "Your tools are: shell, read_file"),
        ("coder", "", "unknown_tool", "Your tools are: shell"),
        ("coder", "x" * 100_000, "unknown_tool", "there is no tool"),
        ("coder", "\ud800", "unknown_tool", "there is no tool"),
        ("planner", "write_file", "not_allowed", "the Planner does not have the tool `write_file`"),
        ("coder", "submit_review", "not_allowed", "To hand over, use `submit_work`."),
        ("reviewer", "remember", "not_allowed", "the Reviewer does not have"),
    ],
)
def test_tools_that_are_not_there(role, name, code, said):
    error = refused(role, name, "{}")
    assert error.code == code
    assert said in error.message
    assert len(error.message) < 1000


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ('{"command": "ls", }', "(character 1"),
        ('{"command": "ls"', "line 1, column 17"),
        ('{"command": "l\ns"}', "Invalid control character"),
        ("ls -la", "Expecting value at line 1, column 1"),
        ('{"command": "a"} {"command": "b"}', "Extra data"),
        ("[]", "not an array of 0"),
        ('"ls"', 'not the string "ls"'),
        ("null", "not null"),
        ("true", "not the boolean true"),
        ('{"command": NaN}', "NaN is not a JSON value"),
        ('{"command": -Infinity}', "-Infinity is not a JSON value"),
        ('{"command": "a", "command": "b"}', "'command' is given more than once"),
        ('{"command": "x", "timeout_s": ' + "9" * 5000 + "}", "Exceeds the limit"),
        ("[" * 200_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"command": "' + "x" * 4_000_000 + '"}', "use several calls"),
    ],
)
def test_broken_json(raw, said):
    error = refused("coder", "shell", raw)
    assert error.code == "invalid_json"
    assert said in error.message
    assert "Expected: shell {command: string" in error.message
    assert len(error.message) < 1000


@pytest.mark.parametrize(
    ("name", "raw", "said"),
    [
        ("edit_file", '{"path": "a", "old": "x"}', "`new` is missing."),
        ("edit_file", '{"path": "a", "old": null, "new": "x"}', "`old` is missing."),
        ("edit_file", '{"path": "a", "old_str": "x", "new": "y"}', "`old_str` is not an argument of edit_file"),
        ("list_files", '{"dept": 2}', "did you mean `depth`?"),
        ("edit_file", '{"path": "a", "old": "x", "new": "x"}', "would change nothing"),
        ("shell", '{"command": 1}', "`command`: Input should be a valid string, but it is the number 1."),
        ("shell", '{"command": ""}', "`command`: String should have at least 1 character"),
        ("shell", '{"command": "x", "timeout_s": "30"}', 'but it is the string "30"'),
        ("shell", '{"command": "x", "timeout_s": 0.5}', "`timeout_s`"),
        ("shell", '{"command": "x", "timeout_s": 1e400}', "`timeout_s`"),
        ("shell", '{"command": "x", "timeout_s": 0}', "greater than or equal to 1"),
        ("shell", '{"command": "x", "timeout_s": 100000}', "less than or equal to 3600"),
        ("shell", '{"command": "x", "background": 1}', "`background`"),
        ("shell", '{"command": "a\\u0000b"}', "`command` contains a NUL character"),
        ("shell", '{"command": "\\ud800"}', "`command` contains half of a surrogate pair"),
        ("shell", '{"\\ud800": 1}', "is not the name of an argument"),
        ("read_file", '{"path": "a", "start_line": 9, "end_line": 3}', "end_line (3) comes before start_line (9)"),
        ("read_file", '{"path": "' + "x" * 5000 + '"}', "a string of 5,000 characters"),
        ("read_output", '{"output_id": "o", "start": 5, "end": 5}', "must be greater than start"),
        ("write_file", '{"path": "a", "content": {"x": 1}}', "but it is an object"),
    ],
)
def test_arguments_that_do_not_fit(name, raw, said):
    error = refused("coder", name, raw)
    assert error.code == "invalid_arguments"
    assert said in error.message
    assert "nothing was done" in error.message
    assert f"Expected: {name} {{" in error.message


def test_a_megabyte_of_content_goes_through():
    content = "é" * 1_000_000
    raw = json.dumps({"path": "a", "content": content}, ensure_ascii=False)
    assert accepted("coder", "write_file", raw).values["content"] == content


def test_deep_nesting_that_is_valid_json_is_an_ordinary_error():
    error = refused("coder", "shell", '{"a":' * 700 + "1" + "}" * 700)
    assert "nested too deeply" in error.message


def test_many_problems_are_told_in_part():
    raw = json.dumps({"command": "x", **{f"f{number}": 1 for number in range(50)}})
    assert "and 40 more" in refused("coder", "shell", raw).message


def test_a_plan_is_checked_as_a_graph():
    subtask = {"id": "a", "title": "A", "instructions": "do", "depends_on": ["b"]}
    error = refused("planner", "submit_plan", json.dumps({"subtasks": [subtask]}))
    assert "there is no subtask 'b'" in error.message
    assert "`subtasks[0].title` is missing." in refused("planner", "submit_plan", '{"subtasks": [{"id": "a"}]}').message
    subtask["depends_on"] = []
    assert isinstance(accepted("planner", "submit_plan", json.dumps({"subtasks": [subtask]})).arguments, Plan)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ('{"verdict": "lgtm"}', "'approve' or 'request_changes'"),
        ('{"verdict": "request_changes"}', "needs at least one finding"),
        ('{"verdict": "approve", "findings": [{"severity": "major", "message": "m"}]}', "only with minor findings"),
        ('{"verdict": "request_changes", "findings": [{"severity": "bad", "message": ""}]}', "`findings[0].severity`"),
        ('{"verdict": "request_changes", "findings": ["x"]}', "`findings[0]`"),
    ],
)
def test_reviews_that_contradict_themselves(raw, said):
    assert said in refused("reviewer", "submit_review", raw).message


def _value(rng: random.Random, depth: int = 0):
    kind = rng.randrange(9 if depth < 4 else 7)
    match kind:
        case 0:
            return None
        case 1:
            return rng.choice([True, False])
        case 2:
            return rng.choice([0, -1, 1, 2**63, 2**200, 0.5, -0.0, 1e308])
        case 3 | 4:
            return "".join(rng.choice(string.printable + "\0é\ud800\u202e😀") for _ in range(rng.randrange(8)))
        case 5:
            return rng.choice(["approve", "shell", "a", "/workspace/x"])
        case 6:
            return rng.choice([[], {}])
        case 7:
            return [_value(rng, depth + 1) for _ in range(rng.randrange(4))]
        case _:
            names = [name for tool in TOOLS.values() for name in tool.arguments.model_fields] + ["id", "\ud800", ""]
            return {rng.choice(names): _value(rng, depth + 1) for _ in range(rng.randrange(5))}


def test_whatever_a_model_writes_is_answered():
    rng = random.Random(20240229)
    names = [*TOOLS, "bash", "", "mcp__x__y"]
    parsed = 0
    for _ in range(4000):
        role, name = rng.choice(list(Role)), rng.choice(names)
        raw = json.dumps(_value(rng), ensure_ascii=rng.random() < 0.5)
        if rng.random() < 0.3:
            cut = rng.randrange(len(raw) + 1)
            raw = raw[:cut] + rng.choice(["", "{", "\\", '"', "\0"]) + raw[cut + rng.randrange(3) :]
        result = parse_call(role, name, raw)
        if isinstance(result, ToolError):
            result.message.encode()
            assert result.message.startswith("Error: ")
        else:
            parsed += 1
            json.dumps(result.values).encode()
    assert parsed > 0
