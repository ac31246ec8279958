import random
import re

import pytest

from journeyman.agents.output import DEFAULT_LIMIT, cut_output, cut_text, output_range, readable


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain\ttext\n", "plain\ttext\n"),
        ("héllo 😀".encode(), "héllo 😀"),
        (b"a\xffb\xc3", "a\\xffb\\xc3"),
        (b"a\x00b\x07\x08\x7f", "a\\x00b\\x07\\x08\\x7f"),
        (b"\x1b[1;31mred\x1b[0m \x1b[2K\x1b[?25lok", "red ok"),
        (b"\x1b]0;title\x07x\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", "xlink"),
        (b"\x1bPq#0\x1b\\after \x1b(Bx\x1b7", "after x"),
        (b"\x1b]0;never closed\nnext", "\\x1b]0;never closed\nnext"),
        (b"end\x1b", "end\\x1b"),
        (b"a\r\nb\r\n", "a\nb\n"),
        (b"10%\r50%\r100%\ndone", "100%\ndone"),
        (b"working\r", "working"),
        ("a\u202eb\u2066".encode(), "a\\u202eb\\u2066"),
        ("\u0085".encode(), "\\x85"),
        (b"", ""),
    ],
)
def test_bytes_become_text_that_does_nothing(data, text):
    assert readable(data) == text


def test_what_fits_is_whole():
    data = b"x" * DEFAULT_LIMIT
    shown = cut_output(data, "out_1")
    assert (shown.text, shown.truncated, shown.total_bytes) == (data.decode(), False, DEFAULT_LIMIT)


def test_the_middle_of_what_is_long_is_left_out():
    data = "".join(f"line {number}\n" for number in range(10_000)).encode()
    shown = cut_output(data, "out_7")
    assert shown.text.startswith("line 0\n")
    assert shown.text.endswith("line 9999\n")
    assert len(shown.text) < DEFAULT_LIMIT + 400
    left_out = data[shown.start : shown.end]
    assert left_out.startswith(b"line ")
    assert left_out.endswith(b"\n")
    assert f'output_id "out_7", start {shown.start}, end {shown.end}' in shown.text
    lines = left_out.count(b"\n")
    assert f"{len(left_out):,} of {len(data):,} bytes left out here ({lines:,} line breaks)" in shown.text


def test_nothing_is_lost_between_the_parts():
    rng = random.Random(5)
    alphabet = ["a", "é", "😀", "\n", "漢"]
    for _ in range(300):
        data = "".join(rng.choice(alphabet) for _ in range(rng.randrange(400))).encode()
        limit = rng.randrange(40, 200)
        shown = cut_output(data, "o", limit)
        if not shown.truncated:
            assert shown.text.encode() == data
            continue
        head, tail = re.split(r"\n?\[… .* …\]\n", shown.text)
        # A line break before the marker is the marker's own, unless the head ended with one.
        assert data[: shown.start].decode().rstrip("\n") == head.rstrip("\n")
        assert data[shown.end :].decode() == tail
        assert "\\x" not in shown.text


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_bytes_the_text_stays_near_the_limit(seed):
    rng = random.Random(seed)
    data = rng.randbytes(rng.randrange(1, 20_000))
    if seed % 3 == 0:
        data = bytes(byte % 32 for byte in data)
    shown = cut_output(data, "o", 1000)
    shown.text.encode()
    assert len(shown.text.encode()) <= 1000 + 300
    assert not set(shown.text) & set(map(chr, [*range(9), 11, 12, *range(14, 32), 127]))


@pytest.mark.parametrize(
    "data", [b"\0" * 50_000, b"\x80" * 50_000, b"\x1b[" * 20_000, b"\r" * 50_000, b"\x1b]" * 20_000]
)
def test_hostile_bytes_are_quick_and_small(data):
    assert len(cut_output(data, "o").text) < DEFAULT_LIMIT + 400


def test_one_endless_line_is_cut_too():
    shown = cut_output(b"x" * 1_000_000, "o")
    assert len(shown.text) < DEFAULT_LIMIT + 400
    assert "(0 line breaks)" in shown.text


def test_ranges_lead_through_the_whole():
    data = "".join(f"{number} é\n" for number in range(5000)).encode()
    start, collected = 0, ""
    while start < len(data):
        head, _, text = output_range(data[start:], start, len(data), 1000).partition("\n")
        collected += text
        more = re.fullmatch(rf"\[bytes {start} to (\d+) of {len(data)}(; more from \d+|, the end)\]", head)
        assert more is not None, head
        start = int(more[1])
    assert collected.encode() == data
    assert "nothing at 99" in output_range(b"", 99, 10)


def test_texts_are_cut_at_whole_characters():
    assert cut_text("short") == "short"
    cut = cut_text("漢" * 1000, 100)
    assert cut.startswith("漢")
    assert cut.endswith("漢")
    assert "\ufffd" not in cut
    assert len(cut.encode()) < 200
    assert cut_text("\ud800") == "\\ud800"
