"""Evaluating the words of a syntax tree: what a node becomes as arguments, as far as the script's own text decides it."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Final

from tree_sitter import Node

from journeyman.agents.shell_commands import Word
from journeyman.agents.shell_expansion import CODE, LATE, PROTECTED, decoded, expand_braces, unescaped, word_of

_ENVIRONMENT: Final = {"HOME": "~", "TMPDIR": "/tmp", "USER": "user", "RANDOM": "1", "UID": "1"}  # noqa: S108  the sandbox's own
_NUMBERS: Final = frozenset("?#!$-0")
_OUTPUTS: Final = (
    (re.compile(r"mktemp\b[^;|&<>`$]*"), "/tmp/mktemp"),  # noqa: S108  the sandbox's own
    (re.compile(r"git rev-parse --show-toplevel"), "/workspace"),
    (re.compile(r"(date|nproc|git rev-parse --short HEAD|git rev-parse HEAD)( \+[\w%-]+)?"), "1"),
)
"""Substitutions whose output is harmless whatever it is, and what stands for it."""


class WordReader(ABC):
    """The state that words depend on: source text, variables, working folder. Collects what the present command's words name."""

    def __init__(self) -> None:
        self._source = b""
        self._cwd = "."
        self._values: dict[str, str] = dict(_ENVIRONMENT)
        self._splits_anywhere = False
        self._variables: set[str] = set()
        self._substitutions: list[str] = []

    @abstractmethod
    def _visit_inside(self, node: Node) -> None:
        """Read the commands within a word; they run in a shell of their own."""

    def _text(self, node: Node) -> str:
        return self._source[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def _words(self, node: Node) -> list[Word]:
        """The arguments that one node of the tree becomes."""
        if node.type == "command_name":
            return [word for child in node.named_children for word in self._words(child)]
        whole = self._text(node)
        splits = node.type in {"simple_expansion", "expansion"} or whole in {'"$@"', '"${@}"'}
        if whole in {'"$@"', '"${@}"'}:
            node = node.named_children[0]
        joined = "".join(self._piece(node))
        fields = joined.split() if splits or (" " in joined and node.type == "concatenation") else [joined]
        return [word_of(each) for field_ in fields for each in expand_braces(field_)]

    def _piece(self, node: Node) -> Iterator[str]:
        """The text of a node; quoted specials are protected, parts known only at run time begin with a mark."""
        kind = node.type
        text = self._text(node)
        if kind == "raw_string":
            yield text[1:-1].translate(PROTECTED)
        elif kind == "ansi_c_string":
            yield CODE.sub(decoded, text[2:-1]).translate(PROTECTED)
        elif kind in {"string", "translated_string"}:
            yield from (piece.translate(PROTECTED) for piece in self._inside(node, quoted=True))
        elif kind == "concatenation":
            yield from self._inside(node, quoted=False)
        elif kind in {"simple_expansion", "expansion"}:
            yield self._variable(node, text)
        elif kind in {"command_substitution", "process_substitution"}:
            yield self._substitution(node, text)
        elif kind in {"arithmetic_expansion", "array", "subscript"} or node.named_child_count:
            self._visit_inside(node)
            yield ("" if kind == "arithmetic_expansion" else LATE) + text.translate(PROTECTED)
        else:
            yield re.sub(r"\\(\n|.)", lambda match: "" if match[1] == "\n" else match[1].translate(PROTECTED), text)

    def _inside(self, node: Node, *, quoted: bool) -> Iterator[str]:
        """The pieces of a quoted or joined word; text between the children belongs to it."""
        if node.type == "translated_string":
            yield from self._piece(node.named_children[0])
            return
        at = node.start_byte + quoted
        end = node.end_byte - quoted
        for child in node.named_children:
            between = self._source[at : child.start_byte].decode("utf-8", "replace")
            yield unescaped(between) if quoted else between
            if child.type == "string_content":
                yield unescaped(self._text(child))
            else:
                yield from self._piece(child)
            at = child.end_byte
        between = self._source[at:end].decode("utf-8", "replace") if at < end else ""
        yield unescaped(between) if quoted else between

    def _variable(self, node: Node, text: str) -> str:
        names = node.named_children
        name = self._text(names[0]) if names else text.strip("${}")
        plain = text in {f"${name}", f"${{{name}}}"}
        if plain and name in _NUMBERS:
            return text.translate(PROTECTED)
        if plain and name == "PWD":
            return self._cwd.translate(PROTECTED)
        if plain and name in self._values and not (self._splits_anywhere and re.search(r"\W", self._values[name])):
            return self._values[name]
        self._visit_inside(node)
        self._variables.add(name)
        return LATE + text.translate(PROTECTED)

    def _substitution(self, node: Node, text: str) -> str:
        inner = re.sub(r"^\s*(\$\(|`|<\(|>\()|[)`]$", "", text).strip()
        self._substitutions.append(inner)
        self._visit_inside(node)
        if node.type == "command_substitution":
            for pattern, output in _OUTPUTS:
                if pattern.fullmatch(inner):
                    return output.translate(PROTECTED)
            if inner == "pwd":
                return self._cwd.translate(PROTECTED)
        return LATE + text.strip().translate(PROTECTED)
