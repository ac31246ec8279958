"""Whether a tool call waits for a person, by the task's approval policy.

The policy is the JSON that the platform stores with the task; nothing in it (``{}``) means that nothing waits. The first rule
that matches decides; without one, ``tools`` does. What ``on_risk`` finds risky is a heuristic, see
:mod:`journeyman.agents.risks`.
"""

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from journeyman.agents.risks import risk_of, risk_of_sequence
from journeyman.agents.risky_paths import risk_of_path
from journeyman.agents.shell_commands import Command
from journeyman.agents.shell_reader import read_script
from journeyman.agents.tools import ParsedCall

Requirement = Literal["never", "on_risk", "always"]

_READS: Final = frozenset({"read_file", "search", "list_files", "read_output", "recall", "read_notes", "post_note"})
"""Tools that change nothing, or nothing but what the agents of the task tell each other."""


class Rule(BaseModel):
    """For the tools whose name matches ``tool`` and, with a ``pattern``, whose command, path or text matches that."""

    model_config = ConfigDict(frozen=True)

    tool: str
    pattern: str | None = None
    require: Requirement


class Policy(BaseModel):
    """What must be approved before it happens. Times and expiry are the platform's."""

    model_config = ConfigDict(frozen=True)

    plan: Literal["never", "always"] = "never"
    tools: Requirement = "never"
    rules: tuple[Rule, ...] = ()

    @classmethod
    def of(cls, stored: dict[str, Any]) -> "Policy":
        """From the task's ``approval_policy``."""
        return cls.model_validate(stored)


def needed(policy: Policy, call: ParsedCall) -> str | None:
    """Why this call waits for a person, in one sentence for that person; None when it does not.

    A shell command is taken apart, and each simple command in it is judged for itself, so that a rule which spares
    ``pytest*`` does not spare what follows behind a ``&&``. Handing over is never a tool call to approve.
    """
    if call.terminal or (policy.tools == "never" and all(rule.require == "never" for rule in policy.rules)):
        return None
    values = call.values
    if call.name == "shell":
        return _command_needs(policy, str(values["command"]))
    subject = _subject(values)
    requirement, why = _requirement(policy, call.name, (subject,))
    if requirement == "always":
        return why if why or call.name not in _READS else None
    if requirement == "on_risk":
        risk = risk_of_path(str(values["path"]), writes=call.name not in _READS) if values.get("path") else None
        return f"It {risk}." if risk else None
    return None


def _command_needs(policy: Policy, script: str) -> str | None:
    parts = read_script(script)
    if parts.problem:
        # A rule may name what was left out.
        return f"It {parts.problem}."
    by_risk = False
    looked_at: list[tuple[tuple[str, ...], Command | None]] = [
        ((command.text, " ".join(command.words)), command) for command in parts.commands
    ]
    for texts, command in looked_at or [(("",), None)]:
        requirement, why = _requirement(policy, "shell", texts)
        if requirement == "always":
            return why
        if requirement == "on_risk":
            by_risk = True
            if command is not None and (risk := risk_of(command)):
                return f"It {risk}: {_shown(command.text)}"
    risk = risk_of_sequence(parts) if by_risk else None
    return f"It {risk}." if risk else None


def _requirement(policy: Policy, tool: str, texts: tuple[str, ...]) -> tuple[Requirement, str | None]:
    """What the policy requires, and the sentence for it if a rule says so."""
    for rule in policy.rules:
        if _applies(rule, tool, texts):
            return rule.require, _because(rule)
    return policy.tools, None if tool in _READS else "The policy asks for every call that can change something."


def _applies(rule: Rule, tool: str, texts: tuple[str, ...]) -> bool:
    if not matches(rule.tool, tool):
        return False
    return rule.pattern is None or any(matches(rule.pattern, text) for text in texts)


def matches(pattern: str, text: str) -> bool:
    """Whether the whole text has the form of the pattern: ``*`` is any text, ``?`` one character, all else itself.

    Takes time proportional to pattern times text at worst, whatever the pattern.
    """
    at = 0
    star: int | None = None
    retry = 0
    position = 0
    while position < len(text):
        if at < len(pattern) and pattern[at] == "*":
            star, retry = at, position
            at += 1
        elif at < len(pattern) and pattern[at] in {"?", text[position]}:
            at += 1
            position += 1
        elif star is not None:
            at = star + 1
            retry += 1
            position = retry
        else:
            return False
    return all(character == "*" for character in pattern[at:])


def _subject(values: dict[str, Any]) -> str:
    """What a rule's pattern is matched against: the path, or the one text that the tool is about."""
    for name in ("path", "query", "text", "pattern", "output_id"):
        if isinstance(values.get(name), str):
            return str(values[name])
    return ""


def _because(rule: Rule) -> str:
    about = f" matching {rule.pattern!r}" if rule.pattern else ""
    return f"A rule of the policy asks for {rule.tool}{about}."


def _shown(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 200 else flat[:199] + "…"
