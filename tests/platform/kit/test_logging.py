import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from opentelemetry import trace
from pydantic import SecretStr

from journeyman.platform.kit import logging as logs
from journeyman.platform.kit.settings import Settings
from journeyman.platform.kit.telemetry import setup, tracer


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    level = root.level
    yield
    for handler in [entry for entry in root.handlers if entry.get_name() == "journeyman"]:
        root.removeHandler(handler)
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_structlog_and_stdlib_write_the_same_lines(stream: io.StringIO) -> None:
    logs.configure("api", stream=stream)
    with logs.bind(task_id="task_1", request_id="req_1"):
        logs.get_logger("mine").info("task.started", attempt=2)
        logging.getLogger("theirs").warning("%s things", 3, extra={"thread_id": "thr_1"})
        logging.getLogger("uvicorn.error").info("Started")
    first, second, third = lines(stream)
    assert (first["event"], first["level"], first["logger"], first["attempt"]) == ("task.started", "info", "mine", 2)
    assert (second["event"], second["level"], second["thread_id"]) == ("3 things", "warning", "thr_1")
    assert third["event"] == "Started"
    for line in (first, second, third):
        assert (line["service"], line["task_id"], line["request_id"]) == ("api", "task_1", "req_1")
        assert str(line["time"]).endswith("Z")


def test_no_secret_reaches_a_line(stream: io.StringIO) -> None:
    logs.configure("api", stream=stream)
    log = logs.get_logger("mine")
    log.info("call", authorization="Bearer aaaaaaaaaa", headers={"X-Api-Key": "bbbbbbbbbb"}, text="sent jm_cccccccccc")
    logging.getLogger("theirs").error("failed for sk-dddddddddd")
    try:
        raise ValueError("password=eeeeeeeeee")
    except ValueError:
        log.exception("broke")
    text = stream.getvalue()
    for secret in ("aaaaaaaaaa", "bbbbbbbbbb", "cccccccccc", "dddddddddd", "eeeeeeeeee"):
        assert secret not in text
    assert "ValueError" in text
    assert len(lines(stream)) == 3


def test_the_settings_own_secrets_are_known() -> None:
    settings = Settings(internal_secret=SecretStr("correct horse battery"), log_level="debug")
    handler = logs.configure_from("worker", settings)
    assert isinstance(handler, logging.StreamHandler)
    stream = io.StringIO()
    handler.setStream(stream)
    logs.get_logger("mine").debug("have correct horse battery here")
    assert lines(stream)[0]["event"] == "have [redacted] here"


def test_lines_inside_a_span_name_it(stream: io.StringIO) -> None:
    telemetry = setup("test", Settings())
    logs.configure("api", stream=stream)
    with tracer().start_as_current_span("work") as span:
        logs.get_logger("mine").info("inside")
    logs.get_logger("mine").info("outside")
    inside, outside = lines(stream)
    assert inside["trace_id"] == trace.format_trace_id(span.get_span_context().trace_id)
    assert inside["span_id"] == trace.format_span_id(span.get_span_context().span_id)
    assert "trace_id" not in outside
    telemetry.shutdown()


def test_levels_and_repeated_configuration(stream: io.StringIO) -> None:
    logs.configure("api", stream=io.StringIO())
    logs.configure("api", level="warning", stream=stream)
    logs.get_logger("mine").info("quiet")
    logs.get_logger("mine").warning("loud")
    logging.getLogger("botocore").info("chatter")
    assert [line["event"] for line in lines(stream)] == ["loud"]


def test_console_format_is_plain_text(stream: io.StringIO) -> None:
    logs.configure("api", format_="console", stream=stream)
    try:
        raise ValueError("token=ffffffffff")
    except ValueError:
        logs.get_logger("mine").exception("broke", n=1)
    assert "broke" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
    assert "ffffffffff" not in stream.getvalue()


def test_what_json_cannot_hold_is_written_as_text(stream: io.StringIO) -> None:
    logs.configure("api", stream=stream)
    logs.get_logger("mine").info("odd", where=object(), raw=b"\xff\x00", text="\ud800 lone")
    assert lines(stream)[0]["event"] == "odd"
