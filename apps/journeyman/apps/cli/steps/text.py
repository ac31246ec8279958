"""What an event means in words."""

from collections.abc import Callable
from dataclasses import dataclass

from journeyman.apps.cli.view import Json, TaskView
from journeyman.apps.cli.waiting import Wait


@dataclass(frozen=True, slots=True)
class EventText:
    """The words for one event, and who it is about; ``role`` empty: as the event says."""

    text: str
    status: str = ""
    detail: str = ""
    role: str = ""
    quiet: bool = False
    wait: Wait | None = None


Describe = Callable[[TaskView, Json, Json], EventText | None]
"""Folds an event (the view, the event, its data) into the view; returns its text, or None when it has no line."""
