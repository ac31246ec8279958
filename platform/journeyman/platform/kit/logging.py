"""JSON logs for all processes: structlog, the standard library's and uvicorn's, one line an event, without secrets.

Each line carries ``time``, ``level``, ``event``, ``logger``, ``service``; inside a request ``request_id``, inside an
activity ``task_id`` and what else was bound with ``bind``; inside a span ``trace_id`` and ``span_id``.
"""

import logging
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Final, Literal, TextIO

import structlog
from opentelemetry import trace

from journeyman.platform.kit.redaction import redact, register_secret
from journeyman.platform.kit.settings import Settings

_OWN_HANDLERS: Final = ("uvicorn", "uvicorn.error", "uvicorn.access", "alembic", "temporalio")
"""Loggers of libraries that like to bring handlers or levels of their own."""

_CHATTY: Final = (
    "botocore",
    "boto3",
    "urllib3",
    "s3transfer",
    "httpx",
    "httpx2",
    "httpcore",
    "asyncio",
    "openai",
    "alembic",
)
"""Libraries whose INFO lines repeat what our own spans and logs say."""

EventDict = MutableMapping[str, Any]


def configure(
    service: str,
    *,
    level: str = "INFO",
    format_: Literal["json", "console"] = "json",
    stream: TextIO | None = None,
) -> logging.Handler:
    """Route every log line of this process through one handler on ``stream`` (stderr). Safe to call again."""

    def add_service(_logger: Any, _method: str, event: EventDict) -> EventDict:
        event.setdefault("service", service)
        return event

    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.UnicodeDecoder(),
        add_service,
        _add_span,
    ]
    last = (
        structlog.processors.JSONRenderer(default=str)
        if format_ == "json"
        else structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    )
    render: list[structlog.types.Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        # Before the redaction: a traceback quotes what was in the exception's message.
        structlog.processors.format_exc_info,
        _redact,
        last,
    ]
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.set_name("journeyman")
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=render))

    root = logging.getLogger()
    for old in [entry for entry in root.handlers if entry.get_name() == "journeyman"]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _OWN_HANDLERS:
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    # One access line a request, with its route, comes from TelemetryMiddleware.
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)

    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *[processor for processor in shared if not isinstance(processor, structlog.stdlib.ExtraAdder)],
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    return handler


def configure_from(service: str, settings: Settings) -> logging.Handler:
    """Configure logging as the settings say, and hide the settings' own secrets wherever they appear."""
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if hasattr(value, "get_secret_value"):
            register_secret(value.get_secret_value())
    return configure(service, level=settings.log_level, format_=settings.log_format)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger whose keyword arguments become fields: ``log.info("task.started", task_id=…)``."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


@contextmanager
def bind(**fields: Any) -> Iterator[None]:
    """Add fields to every line written inside the block, in this task and the tasks it starts."""
    with structlog.contextvars.bound_contextvars(**fields):
        yield


def _add_span(_logger: Any, _method: str, event: EventDict) -> EventDict:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = format(context.trace_id, "032x")
        event["span_id"] = format(context.span_id, "016x")
    return event


def _redact(_logger: Any, _method: str, event: EventDict) -> EventDict:
    return {key: redact(value, key) for key, value in event.items()}
