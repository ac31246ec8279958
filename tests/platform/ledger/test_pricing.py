import json
from decimal import Decimal

import pytest

from journeyman.platform.inference.redaction import MAX_ERROR_TEXT, error_text
from journeyman.platform.kit.errors import InvalidInput
from journeyman.platform.ledger.pricing import Price, PriceTable
from journeyman.platform.ledger.usage import TokenUsage


def test_cached_tokens_have_a_price_of_their_own():
    table = PriceTable([Price(match="a*", input=2, cached_input="0.5", output=8), Price(match="*", input=1, output=1)])
    usage = TokenUsage(prompt_tokens=1_000_000, cached_tokens=400_000, completion_tokens=100_000)
    assert table.cost("A-model", usage) == Decimal("2.2")
    assert table.cost("other", usage) == Decimal("1.1")
    assert table.cost("a", TokenUsage(prompt_tokens=10, cached_tokens=99)) == Decimal("0.000005")


def test_models_without_a_price_are_free():
    assert PriceTable().cost("own", TokenUsage(prompt_tokens=5)) == 0


def test_the_operators_table_comes_first(tmp_path):
    bundled = PriceTable.load()
    own = tmp_path / "prices.json"
    own.write_text(json.dumps({"models": [{"match": "gpt-4o", "input": 1, "output": 1}]}))
    table = PriceTable.load(own)
    assert table.price_of("gpt-4o").input == 1
    assert table.price_of("gpt-4o-mini") == bundled.price_of("gpt-4o-mini")
    assert bundled.price_of("gpt-4o-mini").input < bundled.price_of("gpt-4o").input


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("{", "JSON"),
        ('{"models": [{"match": "a"}]}', "models.0.input"),
        ('{"models": [{"match": "a", "input": -1, "output": 1}]}', "models.0.input"),
    ],
)
def test_a_wrong_price_file_is_named(tmp_path, content, where):
    path = tmp_path / "prices.json"
    path.write_text(content)
    with pytest.raises(InvalidInput, match=r"prices\.json") as caught:
        PriceTable.load(path)
    assert where in str(caught.value)
    with pytest.raises(InvalidInput, match="cannot be read"):
        PriceTable.load(tmp_path / "absent.json")


def test_error_texts_are_short_and_hold_no_secrets():
    secret = "plain-looking-value"
    text = error_text(
        f"a\n{secret} sk-abc***xyz Bearer abcdef123 gsk_abcdefgh " + "x" * 1_000_000 + " end", [secret, "-"]
    )
    assert len(text) < MAX_ERROR_TEXT + 100
    for part in (secret, "sk-abc", "abcdef123", "gsk_"):
        assert part not in text
    assert text.startswith("a ")
    assert text.endswith(" end")
