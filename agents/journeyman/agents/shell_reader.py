"""Reading a shell script into its simple commands, without running anything.

tree-sitter-bash parses; this module evaluates the tree as far as the script's own text decides it: quotes, literal variables,
``for`` over literal items, functions, aliases, here-documents, brace lists, and scripts within scripts (``sh -c``, ``eval``,
``find -exec``, text piped to a shell). A value that is known only at run time stays visible as such in its :class:`Word`.
"""

import re
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from tree_sitter import Node

from journeyman.agents.shell_commands import MAX_DEPTH, Command, Word, unknown, unwrapped
from journeyman.agents.shell_expansion import (
    LATE,
    MAX_EXPANDED,
    quoted,
)
from journeyman.agents.shell_scripts import LATE_COMMAND, scripts_of
from journeyman.agents.shell_syntax import parse, too_nested
from journeyman.agents.shell_words import WordReader

MAX_COMMANDS: Final = 2000
MAX_CHARACTERS: Final = 200_000
MAX_VALUE: Final = 200
_MAX_NODES: Final = 200
"""Nesting of syntax nodes. Each level costs a few frames of the interpreter."""

TOO_MUCH: Final = "is too long or too deeply nested to look through"
NOT_BASH: Final = "cannot be read as a shell script"

_EXECUTES: Final = frozenset({"-exec", "-execdir", "-ok", "-okdir", "-x", "-X"})
_ASSIGNERS: Final = frozenset({"read", "mapfile", "readarray", "getopts", "unset", "printf", "select"})


@dataclass(frozen=True, slots=True)
class ShellScript:
    """All simple commands of a script in order, those in substitutions, in ``sh -c`` and behind wrappers included.

    ``problem``: why a part of it was not read, or None.
    """

    commands: tuple[Command, ...]
    problem: str | None


@dataclass
class _Work:
    found: dict[tuple[object, ...], Command] = field(default_factory=dict)
    left: int = MAX_CHARACTERS
    problem: str | None = None

    def take(self, characters: int) -> bool:
        """Whether so many characters may still be read."""
        self.left -= characters
        if self.left < 0 or len(self.found) >= MAX_COMMANDS:
            self.problem = self.problem or TOO_MUCH
        return self.problem is None


def read_script(script: str) -> ShellScript:
    """Reads at most ``MAX_CHARACTERS``; those of scripts within scripts are counted again. Never raises."""
    work = _Work()
    _Reader(work).script(script)
    return ShellScript(tuple(work.found.values()), work.problem)


class _Reader(WordReader):
    """Reads one script with the variables, functions and aliases that are set where it stands."""

    def __init__(self, work: _Work) -> None:
        super().__init__()
        self._work = work
        self._depth = 0
        self._level = 0
        self._branch = 0
        self._aliases: dict[str, str] = {}
        self._functions: dict[str, tuple[bytes, Node]] = {}
        self._called: set[str] = set()
        self._active: frozenset[str] = frozenset()
        self._piped: tuple[Command, ...] = ()
        self._stdin: str | None = None

    def script(self, text: str) -> None:
        """Read a script that runs in the present state."""
        if self._depth >= MAX_DEPTH or too_nested(text):
            self._work.problem = self._work.problem or TOO_MUCH
        if not self._work.take(len(text)):
            return
        source = text.encode("utf-8", "replace")
        root = None if re.search("[\U000f0000-\U000fffff]", text) else parse(source)
        if root is None:
            self._work.problem = self._work.problem or NOT_BASH
            return
        outer, self._source = self._source, source
        self._depth += 1
        self._visit(root)
        if self._depth == 1:
            for name in [name for name in self._functions if name not in self._called]:
                self._call(name, [])
        self._depth -= 1
        self._source = outer

    def _nested(self, text: str) -> None:
        """Read a script that another shell runs: what it changes does not last."""
        with_state = self._values, self._cwd, self._piped, self._stdin
        self._values = dict(self._values)
        self._piped, self._stdin = (), None
        self.script(text)
        self._values, self._cwd, self._piped, self._stdin = with_state

    def _since(self, count: int) -> tuple[Command, ...]:
        """The commands found after the first ``count``."""
        return tuple(islice(self._work.found.values(), count, None)) if len(self._work.found) > count else ()

    # --- statements

    def _visit(self, node: Node) -> None:
        if self._work.problem:
            return
        if self._level >= _MAX_NODES:
            self._work.problem = TOO_MUCH
            return
        self._level += 1
        self._dispatch(node)
        self._level -= 1

    def _dispatch(self, node: Node) -> None:
        match node.type:
            case "comment":
                pass
            case "subshell":
                self._subshell(node)
            case "pipeline":
                self._pipeline(node)
            case "for_statement":
                self._for(node)
            case "c_style_for_statement" | "while_statement" | "if_statement" | "case_statement":
                self._branches(node)
            case "function_definition":
                self._function(node)
            case "variable_assignment":
                self._assignment(node)
            case "redirected_statement":
                self._redirected(node)
            case "command" | "declaration_command" | "unset_command":
                self._statement(node, [])
            case "test_command":
                self._test(node)
            case kind if kind in _WORDS:
                self._word_statement(node)
            case _:
                self._children(node)

    def _children(self, node: Node) -> None:
        for child in node.named_children:
            self._visit(child)

    def _branches(self, node: Node) -> None:
        self._branch += 1
        # A second round sees what the first one has assigned.
        for _ in range(2 if node.type in {"while_statement", "c_style_for_statement"} else 1):
            self._children(node)
        self._branch -= 1

    def _subshell(self, node: Node) -> None:
        values, cwd = dict(self._values), self._cwd
        self._children(node)
        self._values, self._cwd = values, cwd

    def _pipeline(self, node: Node, before: tuple[Command, ...] | None = None) -> None:
        outer, stdin = self._piped, self._stdin
        stages = self._piped if before is None else before
        for child in node.named_children:
            self._piped = stages
            before_it = len(self._work.found)
            self._visit(child)
            stages = (*stages, *self._since(before_it))[-32:]
            self._stdin = None
        self._piped, self._stdin = outer, stdin

    def _for(self, node: Node) -> None:
        name, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        if name is None or body is None:
            return
        listed = [each for each in node.named_children if each not in {name, body}]
        words = [word for each in listed for word in self._words(each)]
        self._branch += 1
        for word in dict.fromkeys(words[:MAX_EXPANDED]) or [Word("$@", "")]:
            self._values.pop(self._text(name), None)
            if not unknown(word) and len(word) <= MAX_VALUE:
                self._values[self._text(name)] = str(word)
            self._visit(body)
        if len(words) > MAX_EXPANDED:
            self._values.pop(self._text(name), None)
            self._visit(body)
        self._values.pop(self._text(name), None)
        self._branch -= 1

    def _function(self, node: Node) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is None or body is None:
            return
        pattern = re.escape(self._text(name))
        if re.search(rf"(?<![\w-]){pattern}\s*(\|\s*{pattern}|&)(?![\w&-])", self._text(body)):
            self._add(Command((self._text(name),), opaque="multiplies processes without end"))
        self._functions[self._text(name)] = (self._source, body)

    def _call(self, name: str, arguments: list[str]) -> None:
        """Read the function's body with its arguments."""
        self._called.add(name)
        if name in self._active:
            return
        source, body = self._functions[name]
        outer = self._source, self._active
        bound = {str(index): word for index, word in enumerate(arguments, 1) if not unknown(word)}
        if not any(unknown(word) or re.search(r"\s", word) for word in arguments) and arguments:
            bound["@"] = bound["*"] = " ".join(arguments)
        kept = {key: self._values.pop(key) for key in list(self._values) if key.isdigit() or key in "@*"}
        self._values |= {key: value for key, value in bound.items() if len(value) <= MAX_VALUE}
        self._source, self._active = source, self._active | {name}
        if self._work.take(body.end_byte - body.start_byte):
            self._visit(body)
        self._source, self._active = outer
        self._values = {key: each for key, each in self._values.items() if not (key.isdigit() or key in "@*")} | kept

    def _assignment(self, node: Node) -> None:
        self._assign(node)
        if self._variables or self._substitutions:
            self._variables, self._substitutions = set(), []

    def _assign(self, node: Node) -> str:
        """Take up a variable's value, if it is known; its name."""
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        known = self._text(name) if name is not None else ""
        words = self._words(value) if value is not None else [Word("")]
        appends = any(child.type == "+=" for child in node.children)
        text = str(words[0]) if len(words) == 1 else ""
        if len(words) != 1 or unknown(words[0]) or len(text) > MAX_VALUE or appends or known == "IFS":
            self._values.pop(known, None)
        elif self._branch and self._values.get(known, text) != text:
            self._values.pop(known)  # it depends on the branch that was taken
        else:
            self._values[known] = text
        self._splits_anywhere = self._splits_anywhere or known == "IFS"
        return known

    def _redirected(self, node: Node) -> None:
        body = node.child_by_field_name("body")
        redirects = [child for child in node.named_children if child != body]
        self._statement(body, redirects)

    def _statement(self, body: Node | None, redirects: list[Node]) -> None:
        """Read one statement with its redirections, then what a here-document has pushed behind them."""
        writes: list[str] = []
        reads: list[str] = []
        stdin: str | None = None
        rest: list[tuple[Node, bool]] = []
        extra: list[Node] = []
        parts = list(redirects)
        if body is not None and body.type in {"command", "declaration_command", "unset_command"}:
            parts += [child for child in body.named_children if child.type.endswith("_redirect")]
        while parts:
            redirect = parts.pop(0)
            if redirect.type == "file_redirect":
                self._file(redirect, writes, reads)
            elif redirect.type == "herestring_redirect":
                words = [word for child in redirect.named_children for word in self._words(child)]
                stdin = words[0] if words else ""
            else:
                stdin = self._heredoc(redirect)
                for child in redirect.named_children:
                    if child.type.endswith("_redirect"):
                        parts.append(child)
                    elif child.type == "pipeline":
                        rest.append((child, True))
                    elif child.type in _WORDS:
                        extra.append(child)
                    elif not child.type.startswith("heredoc") and child.type != "file_descriptor":
                        rest.append((child, False))
        before = len(self._work.found)
        if body is not None and body.type in {"command", "declaration_command", "unset_command"}:
            self._simple(body, tuple(writes), tuple(reads), stdin, extra)
        else:
            if writes or reads:
                self._add(Command((), tuple(writes), tuple(reads), cwd=self._cwd))
            if body is not None:
                outer = self._stdin
                self._stdin = stdin if stdin is not None else self._stdin
                self._visit(body)
                self._stdin = outer
        for child, is_piped in rest:
            if is_piped:
                self._pipeline(child, self._since(before))
            else:
                self._visit(child)

    def _file(self, redirect: Node, writes: list[str], reads: list[str]) -> None:
        operator = next((child.type for child in redirect.children if not child.is_named), "")
        for child in redirect.children_by_field_name("destination"):
            for word in self._words(child):
                if operator in {">&", "<&", ">&-", "<&-"} and re.fullmatch(r"\d*-?", word):
                    continue
                (reads if operator in {"<", "<&"} else writes).append(word)

    def _heredoc(self, redirect: Node) -> str:
        body = next((child for child in redirect.named_children if child.type == "heredoc_body"), None)
        start = next((child for child in redirect.named_children if child.type == "heredoc_start"), None)
        if body is None or start is None:
            return ""
        text = self._text(body)
        late = False
        if not re.search(r"['\"\\]", self._text(start)):
            for child in body.named_children:
                if child.type != "heredoc_content":
                    late = any(LATE in piece for piece in self._piece(child)) or late
        if any(child.type == "<<-" for child in redirect.children):
            text = re.sub(r"^\t+", "", text, flags=re.MULTILINE)
        return Word(text, "" if late else None)

    def _simple(
        self, node: Node, writes: tuple[str, ...], reads: tuple[str, ...], stdin: str | None, extra: list[Node]
    ) -> None:
        words: list[Word] = []
        assigned: set[str] = set()
        if node.type != "command":
            words.append(Word(self._text(node.children[0])))
        kept = dict(self._values)
        for child in [*node.named_children, *extra]:
            if child.type == "variable_assignment":
                name = self._assign(child)
                assigned.add(f"{name}={self._values.get(name, '?')}")
            elif not child.type.endswith("_redirect"):
                words += self._words(child)
        if node.type == "command" and words:
            self._values = kept
        command = Command(
            words=tuple(words),
            writes=writes,
            reads=reads,
            stdin=stdin if stdin is not None else self._stdin,
            variables=frozenset(self._variables),
            assigned=frozenset(assigned),
            substitutions=tuple(self._substitutions),
            piped=self._piped,
            cwd=self._cwd,
        )
        self._variables, self._substitutions = set(), []
        self._run(command)

    # --- what a command runs in its turn

    def _run(self, command: Command) -> None:
        if not self._work.take(sum(map(len, command.words))):
            return
        inner = unwrapped(command)
        first = inner.words[0] if inner.words else Word("")
        if unknown(first) or (isinstance(first, Word) and first.glob):
            inner = replace(inner, opaque=LATE_COMMAND)
        name = inner.name
        if name in self._functions and "/" not in first:
            self._call(name, list(inner.words[1:]))
            inner = replace(inner, words=(":", *inner.words[1:])) if not inner.appended else inner
        elif name in self._aliases and "/" not in first:
            body = self._aliases.pop(name)
            self._nested(f"{body} {' '.join(quoted(word) for word in inner.words[1:])}")
            self._aliases[name] = body
            inner = replace(inner, words=(":", *inner.words[1:]))
        if name in {"cd", "pushd"}:
            self._change_folder(inner)
        elif name == "alias":
            for word in inner.words[1:]:
                key, _, body = word.partition("=")
                self._aliases[key] = LATE_COMMAND if unknown(word) else body
        elif name in _ASSIGNERS:
            for word in inner.words[1:]:
                self._values.pop(word, None)
        scripts, opaque = scripts_of(inner)
        if opaque and not inner.opaque:
            inner = replace(inner, opaque=opaque)
        self._add(inner)
        for script in scripts:
            if name in {"eval", "trap"}:
                self.script(script)
            else:
                self._nested(script)
        if name in {"find", "fd", "fdfind"}:
            self._executed(inner)

    def _add(self, command: Command) -> None:
        if command.words or command.writes or command.reads or command.assigned or command.opaque:
            # Words are equal by their text alone.
            self._work.found[command, *map(unknown, (*command.words, *command.writes, *command.reads))] = command

    def _change_folder(self, command: Command) -> None:
        targets = [word for word in command.words[1:] if not word.startswith("-") or word == "-"]
        target = targets[0] if targets else "~"
        if target == "-" or (unknown(target) and not target.startswith("/")):
            self._cwd = "$folder"
        else:
            self._cwd = str(target) if target.startswith(("/", "~", "$")) else f"{self._cwd}/{target}"
        if len(self._cwd) > 4096:
            self._cwd = "$folder"

    def _executed(self, command: Command) -> None:
        words = command.words
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._work.problem = self._work.problem or TOO_MUCH
        for index in [index for index, word in enumerate(words) if word in _EXECUTES]:
            rest = words[index + 1 :]
            end = next((at for at, word in enumerate(rest) if word in {";", "+"}), len(rest))
            inner = tuple(Word(each, each.partition("{}")[0]) if "{}" in each else each for each in rest[:end])
            if inner and self._work.problem is None:
                found = replace(command, words=tuple(word for word in words[:index] if word not in _EXECUTES))
                # What is found is appended, as xargs does.
                plain = tuple(word for word in inner if word != "{}" or word is inner[0])
                self._run(replace(command, words=plain, stdin=None, piped=(found,), appended=True))
        self._depth -= 1

    def _visit_inside(self, node: Node) -> None:
        """Read the commands within a word; they run in a shell of their own."""
        state = self._variables, self._substitutions, self._piped, self._stdin, self._cwd, dict(self._values)
        self._variables, self._substitutions, self._piped, self._stdin = set(), [], (), None
        self._children(node)
        self._variables, self._substitutions, self._piped, self._stdin, self._cwd, self._values = state

    def _word_statement(self, node: Node) -> None:
        """A word where no command stands: only the commands within it matter."""
        for _ in self._piece(node):
            pass
        if node.type not in {"command_substitution", "process_substitution"}:
            return
        self._variables, self._substitutions = set(), []

    def _test(self, node: Node) -> None:
        self._children(node)
        self._variables, self._substitutions = set(), []
        self._add(Command(tuple(self._text(node).split()), cwd=self._cwd))


_WORDS: Final = frozenset({
    "word", "string", "raw_string", "ansi_c_string", "translated_string", "simple_expansion", "expansion", "concatenation",
    "command_substitution", "process_substitution", "arithmetic_expansion", "number", "brace_expression",
})  # fmt: skip
