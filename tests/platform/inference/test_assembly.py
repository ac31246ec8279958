import json

import pytest

from journeyman.platform.inference import assembly
from journeyman.platform.inference.assembly import StreamAssembler
from journeyman.platform.inference.errors import ModelRejected
from journeyman.platform.inference.port import Delta


def assemble(*fragments, request_id="r"):
    assembler = StreamAssembler(request_id)
    for fragment in fragments:
        assembler.feed({"choices": [{"index": 0, "delta": {"tool_calls": [fragment]}}]})
    return [(call.name, call.arguments) for call in assembler.tool_calls()], assembler.tool_calls()


def fragment(index=None, call_id=None, name=None, arguments=None):
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    outer = {"index": index, "id": call_id, "function": function}
    return {key: value for key, value in outer.items() if value is not None}


def test_fragments_by_index_interleave():
    calls, full = assemble(
        fragment(0, "a", "shell", ""),
        fragment(1, "b", "read_file", '{"pa'),
        fragment(0, arguments='{"command"'),
        fragment(1, arguments='th": "x"}'),
        fragment(0, arguments=': "ls"}'),
    )
    assert calls == [("shell", '{"command": "ls"}'), ("read_file", '{"path": "x"}')]
    assert [call.id for call in full] == ["a", "b"]


def test_name_and_id_repeated_in_every_fragment():
    calls, _ = assemble(
        fragment(0, "a", "shell", '{"a"'), fragment(0, "a", "shell", ":1"), fragment(0, "a", "shell", "}")
    )
    assert calls == [("shell", '{"a":1}')]


def test_whole_calls_that_all_claim_index_zero():
    calls, full = assemble(fragment(0, "a", "shell", '{"a":1}'), fragment(0, "b", "shell", '{"b":2}'))
    assert calls == [("shell", '{"a":1}'), ("shell", '{"b":2}')]
    assert [call.id for call in full] == ["a", "b"]


def test_no_index_at_all():
    calls, _ = assemble(
        fragment(None, "a", "shell", '{"a"'), fragment(None, arguments=":1}"), fragment(None, None, "search", "{}")
    )
    assert calls == [("shell", '{"a":1}'), ("search", "{}")]


def test_name_cut_into_pieces():
    calls, _ = assemble(fragment(0, "a", "read_"), fragment(0, name="file"), fragment(0, arguments="{}"))
    assert calls == [("read_file", "{}")]


def test_missing_and_doubled_ids_become_deterministic_ones():
    fragments = [fragment(0, None, "a", "{}"), fragment(1, "x", "b", "{}"), fragment(2, "x", "c", "{}")]
    _, first = assemble(*fragments)
    _, again = assemble(*fragments)
    _, other = assemble(*fragments, request_id="other")
    assert [call.id for call in first] == [call.id for call in again]
    assert len({call.id for call in first}) == 3
    assert first[1].id == "x"
    assert first[0].id != other[0].id


def test_arguments_sent_as_an_object():
    calls, _ = assemble({"index": 0, "id": "a", "function": {"name": "f", "arguments": {"ü": 1}}})
    assert json.loads(calls[0][1]) == {"ü": 1}


def test_broken_arguments_are_kept_as_they_are():
    calls, _ = assemble(fragment(0, "a", "shell", '{"command": '))
    assert calls == [("shell", '{"command": ')]


def test_other_choices_are_not_mixed_in():
    assembler = StreamAssembler("r")
    assembler.feed({"choices": [{"index": 1, "delta": {"content": "no"}}, {"index": 0, "delta": {"content": "yes"}}]})
    assert assembler.text == "yes"


def test_usage_counts_wherever_it_stands():
    assembler = StreamAssembler("r")
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_cache_hit_tokens": 4}
    assembler.feed({"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}], "usage": usage})
    assembler.feed({"choices": [], "usage": None})
    assert assembler.usage is not None
    assert (assembler.usage.prompt_tokens, assembler.usage.cached_tokens, assembler.usage.completion_tokens) == (
        5,
        4,
        2,
    )
    assert assembler.finish_reason == "stop"


def test_deltas_tell_what_arrives():
    seen: list[Delta] = []
    assembler = StreamAssembler("r", seen.append)
    assembler.feed({"choices": [{"delta": {"reasoning_content": "hm"}}]})
    assembler.feed({"choices": [{"delta": {"content": "text"}}]})
    assembler.feed({"choices": [{"delta": {"tool_calls": [fragment(0, "a", "shell", "")]}}]})
    assembler.feed({"choices": [{"delta": {"tool_calls": [fragment(0, arguments="{}")]}}]})
    assert seen == [
        Delta("reasoning", "hm"),
        Delta("text", "text"),
        Delta("tool_call", "", 0, "shell"),
        Delta("tool_call", "{}", 0, None),
    ]


def test_an_endless_answer_is_cut_off(monkeypatch):
    monkeypatch.setattr(assembly, "MAX_ANSWER_CHARS", 10)
    assembler = StreamAssembler("r")
    with pytest.raises(ModelRejected) as caught:
        assembler.feed({"choices": [{"delta": {"content": "x" * 11}}]})
    assert caught.value.code == "answer_too_large"


def test_arguments_too_deep_to_be_read_are_taken_as_they_are():
    deep = '{"a": ' + "[" * 3000 + "]" * 3000 + "}"
    calls, _ = assemble(fragment(name="shell", arguments=deep), fragment(name="shell", arguments="{}"))
    assert calls == [("shell", deep + "{}")]
