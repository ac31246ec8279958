import subprocess
import sys

import pytest
from temporalio.worker.workflow_sandbox import SandboxRestrictions
from temporalio.worker.workflow_sandbox._importer import Importer
from temporalio.worker.workflow_sandbox._restrictions import RestrictionContext

from journeyman.agents.roles import PROFILES, Role, profile, prompt
from journeyman.agents.tools import TOOLS


@pytest.mark.parametrize(("role", "title"), [("planner", "Planner"), ("coder", "Coder"), ("reviewer", "Reviewer")])
def test_the_first_line_names_the_role(role, title):
    assert prompt(role).splitlines()[0] == f"You are the {title} of Journeyman."
    assert profile(role).title == title


@pytest.mark.parametrize("role", Role)
def test_a_prompt_tells_how_work_ends_and_where_it_happens(role):
    text = prompt(role)
    for wanted in (profile(role).terminal_tool, "/workspace", "/artifacts", "read_output", "recall", "clean sandbox"):
        assert wanted in text


@pytest.mark.parametrize("role", Role)
def test_a_prompt_mentions_no_tool_that_the_role_does_not_have(role):
    own = profile(role).tools
    shared_hint = {"remember"}  # the workplace says "where you have it"
    named = {name for name in TOOLS if f"`{name}`" in prompt(role)}
    assert named - set(own) <= shared_hint


def test_only_the_coder_changes_the_work():
    assert [role for role, own in PROFILES.items() if not own.forks_workspace] == [Role.CODER]
    for own in PROFILES.values():
        writes = {"write_file", "edit_file", "remember"} & set(own.tools)
        assert bool(writes) == (own.role == Role.CODER)


def test_tools_are_listed_in_the_one_order():
    order = list(TOOLS)
    for own in PROFILES.values():
        assert sorted(own.tools, key=order.index) == list(own.tools)
        assert own.tools[-1] == own.terminal_tool


def test_an_unknown_role_is_refused():
    with pytest.raises(ValueError, match="janitor"):
        prompt("janitor")


MODULES = ("roles", "tools", "plans", "context", "output", "budget", "loops", "review", "compaction")


def test_every_module_is_importable_in_the_workflow_sandbox():
    code = "; ".join(f"import journeyman.agents.{name}" for name in MODULES)
    importer = Importer(SandboxRestrictions.default, RestrictionContext())
    with importer.applied():
        exec(compile(code, "<workflow>", "exec"), {"__builtins__": __builtins__})


def test_importing_reads_no_prompt_and_brings_no_client_along():
    code = (
        "import sys\n"
        + "\n".join(f"import journeyman.agents.{name}" for name in MODULES)
        + "\nfrom journeyman.agents.roles import prompt\n"
        "assert prompt.cache_info().currsize == 0\n"
        "heavy = {'sqlalchemy', 'httpx', 'openai', 'temporalio', 'boto3', 'fastapi', 'qdrant_client', 'aiohttp'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
