"""Every documented form of a refusal is understood, by status, code and wording."""

import pytest

from journeyman.platform.inference.refusals import RefusalKind, classify
from journeyman.platform.inference.refusals.classify import documented, error_object

RULES = documented()


@pytest.mark.parametrize(("family", "rule"), RULES, ids=[f"{family}-{n}" for n, (family, _) in enumerate(RULES)])
def test_the_documented_form_is_understood(family, rule):
    example = rule["example"]
    refusal = classify(example["status"], example["message"], code=example["code"])
    assert refusal.kind == rule["kind"]
    assert refusal.limit == example.get("limit")
    assert refusal.parameter == example.get("parameter")
    assert refusal.instead == example.get("instead")
    assert rule["source"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "unknown"),
        (413, "unknown"),
        (422, "unknown"),
        (401, "account"),
        (402, "account"),
        (403, "account"),
        (429, "busy"),
        (500, "busy"),
        (503, "busy"),
        (529, "busy"),
    ],
)
def test_words_that_no_rule_knows_are_classified_by_status(status, kind):
    assert classify(status, "computer says no").kind == kind


def test_a_prompt_that_leaves_no_room_for_an_answer_is_too_long():
    words = (
        "This model's maximum context length is 8192 tokens. However, you requested 16288 tokens "
        "(8188 in the messages, 8100 in the completion). Please reduce the length of the messages or completion."
    )
    refusal = classify(400, words, code="context_length_exceeded")
    assert (refusal.kind, refusal.limit) == (RefusalKind.CONTEXT_TOO_LONG, 8192)


def test_the_parameter_of_the_error_object_counts_where_the_words_name_none():
    refusal = classify(400, "Unsupported parameter: ''", code="unsupported_parameter", parameter="messages[0].name")
    assert refusal.kind in {RefusalKind.PARAMETER, RefusalKind.UNKNOWN}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"error":{"message":"m","type":"t","code":"c","param":"p"}}', ("m", "c", "p", None)),
        ('{"error":{"message":"m","type":"t","code":400}}', ("m", "t", None, 400)),
        ('{"error":"plain words"}', ("plain words", "", None, None)),
        (
            '{"object":"error","message":"m","type":"BadRequestError","param":null,"code":400}',
            ("m", "BadRequestError", None, 400),
        ),
        (
            '{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}',
            ("Overloaded", "overloaded_error", None, None),
        ),
        (
            '[{"error":{"code":429,"message":"m","status":"RESOURCE_EXHAUSTED"}}]',
            ("m", "RESOURCE_EXHAUSTED", None, 429),
        ),
        ('{"detail":"Not Found"}', ("Not Found", "", None, None)),
        ('{"choices":[],"message":"x"}', None),
        ("<html>", None),
        ("[1,2]", None),
    ],
)
def test_error_objects_of_all_families_are_read(body, expected):
    assert error_object(body) == expected
