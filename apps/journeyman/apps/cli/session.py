"""What every command that talks to a server has in common: finding it, and printing for people or programs."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from journeyman.apps.cli import render
from journeyman.apps.cli.client import Api
from journeyman.apps.cli.server import find_server
from journeyman.apps.cli.suggestions import Suggestion, laid_out, terminal_width
from journeyman.apps.cli.text import one_line
from journeyman.apps.cli.view import Json


@dataclass(frozen=True, slots=True)
class Target:
    """The global options."""

    url: str | None = None
    api_key: str | None = None


@contextmanager
def connected(target: Target) -> Iterator[Api]:
    server = find_server(target.url, target.api_key)
    # Only the address of a local stack may change while a command runs.
    local = server.source not in {"--url", "JOURNEYMAN_URL"}
    api = Api(server, locate=(lambda: find_server(target.url, target.api_key)) if local else None)
    try:
        yield api
    finally:
        api.close()


def engine_is_replay(api: Api) -> bool:
    """Whether scripted answers stand in for a model; said wherever a task is shown."""
    return bool(api.get("/v1/me").get("engine") == "replay")


def warn(answer: Json) -> None:
    """What an answer warns of, on standard error; in ``--json`` it stands anyway."""
    for warning in answer.get("warnings") or ():
        print(f"! {one_line(str(warning.get('message')), 1000)}", file=sys.stderr)


def suggest(*suggestions: Suggestion) -> None:
    """Commands to go on with, for people: on standard error, so that results stay alone."""
    print("\n".join(laid_out(suggestions, terminal_width())), file=sys.stderr)


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=True, indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: on a terminal with lines, or as blocks where it is too wide; aligned and never cut in a pipe."""
    if render.is_terminal():
        out = render.console()
        out.print(render.listing(columns, rows, out))
        return
    widths = [max(len(row[index]) for row in [columns, *rows]) for index in range(len(columns))]
    for row in [columns, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
