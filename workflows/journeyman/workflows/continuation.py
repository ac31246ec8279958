"""When a workflow goes on as a new run, and how."""

from typing import NoReturn

from pydantic import BaseModel
from temporalio import workflow
from temporalio.workflow import ContinueAsNewVersioningBehavior

from journeyman.workflows import timing


def is_due() -> bool:
    """Whether to go on as a new run at the next boundary between turns.

    The server suggests it by events and bytes; before that, a run of ``timing.EVENTS_PER_RUN`` is long enough to be
    replayed; and where workers have versions, a run that began on an older one moves to the current.
    """
    info = workflow.info()
    return (
        info.is_continue_as_new_suggested()
        or info.get_current_history_length() >= timing.EVENTS_PER_RUN
        or info.is_target_worker_deployment_version_changed()
    )


def go_on(start: BaseModel) -> NoReturn:
    """End this run and begin another with ``start``, on the current version of the workflow code.

    Only from a workflow's main function, with all signals handled. Temporal refuses it when another signal has come
    meanwhile: the code runs on then, and takes that signal along.
    """
    workflow.continue_as_new(start, initial_versioning_behavior=ContinueAsNewVersioningBehavior.AUTO_UPGRADE)
