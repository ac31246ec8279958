"""Taking a shell script apart into its simple commands, without running anything.

Enough of bash's grammar to see what a script is about to do: quotes, lists, pipelines, redirections, here-documents,
substitutions, literal variables, and the commands that wrap others (``env``, ``sudo``, ``xargs``, ``sh -c`` …). It is no
parser of the whole language: what it cannot see through shows up as words that were not resolved.
"""

import re
from dataclasses import dataclass, field, replace
from typing import Final

from journeyman.agents.shell_commands import ASSIGNMENT, MAX_DEPTH, SHELLS, Command, script_of, until, unwrapped

MAX_COMMANDS: Final = 2000
MAX_READ: Final = 500_000
MAX_VALUE: Final = 200

_EXECUTES: Final = frozenset({"-exec", "-execdir", "-ok", "-okdir", "-x", "-X"})
_SPACE: Final = " \t\r"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN: Final = re.compile(r"(?:[^\s;&|()<>\\'\"$`]+|.)", re.DOTALL)
_PLAIN_QUOTED: Final = re.compile(r"(?:[^\\\"$`]+|.)", re.DOTALL)
_BRACES: Final = re.compile(r"\{([^{}\s]*,[^{}\s]*)\}")
_DIGITS: Final = re.compile(r"\d+(?=[<>])")
_CODE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|([0-7]{1,3}))")
_LEADING: Final = frozenset({"if", "then", "else", "elif", "while", "until", "do", "{", "!", "time", "coproc"})
_CLOSING: Final = frozenset({"fi", "done", "esac", "}"})
_ESCAPES: Final = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "a": "\a",
    "b": "\b",
    "e": "\x1b",
    "E": "\x1b",
    "f": "\f",
    "v": "\v",
}


@dataclass(frozen=True, slots=True)
class Script:
    """A script taken apart: all its simple commands, those in substitutions, in ``sh -c`` and behind wrappers included, in
    order. ``whole``: none was left out because there was too much to read.
    """

    commands: tuple[Command, ...]
    whole: bool


def take_apart(script: str) -> Script:
    """Reads at most ``MAX_READ`` characters, those of scripts within scripts counted again."""
    work = _Work()
    _Reader(script, work, {}, 0).read()
    return Script(tuple(work.found), work.whole)


@dataclass
class _Work:
    found: list[Command] = field(default_factory=list)
    left: int = MAX_READ
    whole: bool = True

    def take(self, characters: int) -> bool:
        """Whether there is still time for so much."""
        self.left -= characters
        if self.left < 0 or len(self.found) >= MAX_COMMANDS:
            self.whole = False
        return self.whole


@dataclass
class _Word:
    parts: list[str] = field(default_factory=list)
    quoted: bool = False
    started: bool = False
    variables: set[str] = field(default_factory=set)
    substitutions: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def add(self, text: str) -> None:
        self.parts.append(text)
        self.started = True


class _Reader:
    """Reads one script. Never raises: what is not closed ends with the text."""

    def __init__(self, text: str, work: _Work, values: dict[str, str], depth: int, cwd: str = ".") -> None:
        self._text = text
        self._at = 0
        self._work = work
        self._found = work.found
        self._values = values
        self._depth = depth
        self._cwd = cwd
        self._heredocs: list[tuple[str, bool]] = []
        self._bodies: list[str] = []
        self._words: list[_Word] = []
        self._writes: list[str] = []
        self._reads: list[str] = []
        self._stdin: str | None = None
        self._heredoc_owner: list[int] = []
        self._pipeline: list[Command] = []

    def read(self) -> None:
        text = self._text
        if not self._work.take(len(text)):
            return
        while self._at < len(text) and self._work.whole:
            character = text[self._at]
            if character in _SPACE:
                self._at += 1
            elif character == "\\" and text.startswith("\\\n", self._at):
                self._at += 2
            elif character == "#":
                self._skip_line()
            elif character == "\n":
                self._at += 1
                self._take_heredocs()
                self._end(piped=False)
            elif character in ";&|()":
                self._operator()
            elif character in "<>" and not text.startswith(("<(", ">("), self._at):
                self._redirect()
            else:
                self._word_or_descriptor()
        self._take_heredocs()
        self._end(piped=False)

    def _skip_line(self) -> None:
        end = self._text.find("\n", self._at)
        self._at = len(self._text) if end < 0 else end

    def _operator(self) -> None:
        text = self._text
        if text.startswith("&>", self._at):
            self._at += 2 + text.startswith(">", self._at + 2)
            self._redirect_target(self._writes)
            return
        both = text[self._at : self._at + 2]
        piped = text[self._at] == "|" and both != "||"
        self._at += 2 if both in {"&&", "||", ";;", "|&", ";&"} else 1
        self._end(piped=piped)

    def _redirect(self) -> None:
        text = self._text
        if text.startswith("<<<", self._at):
            self._at += 3
            self._stdin = self._next_word().text
        elif text.startswith("<<", self._at):
            self._at += 2
            strip = text.startswith("-", self._at)
            self._at += strip
            word = self._next_word()
            self._heredocs.append((word.text, strip))
        elif text.startswith(("<>", ">|", ">>"), self._at):
            self._at += 2
            self._redirect_target(self._writes)
        elif text.startswith((">&", "<&"), self._at):
            outgoing = text[self._at] == ">"
            self._at += 2
            word = self._next_word()
            if outgoing and word.text and not re.fullmatch(r"\d+-?|-", word.text):
                self._writes.append(word.text)
        else:
            outgoing = text[self._at] == ">"
            self._at += 1
            self._redirect_target(self._writes if outgoing else self._reads)

    def _redirect_target(self, targets: list[str]) -> None:
        word = self._next_word()
        if word.started:
            targets.append(word.text)
            if self._words:
                self._words[-1].variables |= word.variables
                self._words[-1].substitutions += word.substitutions

    def _word_or_descriptor(self) -> None:
        digits = _DIGITS.match(self._text, self._at)
        if digits:
            self._at = digits.end()
            return
        before = self._at
        word = self._word()
        if word.started:
            self._words.append(word)
        elif self._at == before:
            self._at += 1

    def _next_word(self) -> _Word:
        while self._at < len(self._text) and self._text[self._at] in _SPACE:
            self._at += 1
        return self._word()

    def _word(self) -> _Word:
        word = _Word()
        text = self._text
        while self._at < len(text):
            character = text[self._at]
            if character in _SPACE or character in "\n;&|()<>":
                if text.startswith(("<(", ">("), self._at):
                    self._at += 2
                    self._substitution(word, self._until_closed(")"), "<(")
                    continue
                if character == "(" and word.parts and word.parts[-1].endswith("=") and not word.quoted:
                    self._at += 1
                    word.add("(" + self._until_closed(")") + ")")
                    continue
                break
            self._part(word)
        return word

    def _part(self, word: _Word) -> None:
        text = self._text
        character = text[self._at]
        self._at += 1
        if character == "\\":
            if not text.startswith("\n", self._at):
                word.add(text[self._at : self._at + 1])
            self._at += 1
        elif character == "'":
            end = text.find("'", self._at)
            end = len(text) if end < 0 else end
            word.add(text[self._at : end])
            word.quoted = True
            self._at = end + 1
        elif character == '"':
            word.quoted = True
            word.add("")
            self._double_quoted(word)
        elif character == "$":
            self._dollar(word)
        elif character == "`":
            self._backticks(word)
        else:
            plain = _PLAIN.match(text, self._at - 1)
            assert plain is not None
            self._at = plain.end()
            word.add(plain.group())

    def _double_quoted(self, word: _Word) -> None:
        text = self._text
        while self._at < len(text):
            character = text[self._at]
            self._at += 1
            if character == '"':
                return
            if character == "\\" and text[self._at : self._at + 1] in {'"', "\\", "$", "`", "\n"}:
                word.add(text[self._at].replace("\n", ""))
                self._at += 1
            elif character == "$":
                self._dollar(word)
            elif character == "`":
                self._backticks(word)
            else:
                plain = _PLAIN_QUOTED.match(text, self._at - 1)
                assert plain is not None
                self._at = plain.end()
                word.add(plain.group())

    def _dollar(self, word: _Word) -> None:
        text = self._text
        if text.startswith("'", self._at) and not word.quoted:
            self._at += 1
            self._ansi(word)
        elif text.startswith("((", self._at):
            self._at += 1
            word.add("$(" + self._until_closed(")") + ")")
        elif text.startswith("(", self._at):
            self._at += 1
            self._substitution(word, self._until_closed(")"), "$(")
        elif text.startswith("{", self._at):
            self._at += 1
            inside = self._until_closed("}")
            name = _NAME.match(inside.lstrip("#!"))
            self._variable(word, name.group() if name else inside, inside, f"${{{inside}}}")
        elif name := _NAME.match(text, self._at):
            self._at = name.end()
            self._variable(word, name.group(), name.group(), f"${name.group()}")
        elif self._at < len(text) and text[self._at] in "@*#?$!-0123456789":
            word.add("$" + text[self._at])
            self._at += 1
        else:
            word.add("$")

    def _variable(self, word: _Word, name: str, inside: str, shown: str) -> None:
        if name in self._values and inside == name:
            word.add(self._values[name])
        else:
            word.add(shown)
            word.variables.add(name)

    def _ansi(self, word: _Word) -> None:
        text = self._text
        while self._at < len(text) and text[self._at] != "'":
            if text[self._at] == "\\" and self._at + 1 < len(text):
                code = _CODE.match(text, self._at)
                if code:
                    base = 8 if code[3] else 16
                    word.add(chr(int(code[1] or code[2] or code[3], base)))
                    self._at = code.end()
                else:
                    word.add(_ESCAPES.get(text[self._at + 1], text[self._at + 1]))
                    self._at += 2
            else:
                word.add(text[self._at])
                self._at += 1
        self._at += 1

    def _backticks(self, word: _Word) -> None:
        start = self._at
        while self._at < len(self._text) and self._text[self._at] != "`":
            self._at += 1 + (self._text[self._at] == "\\")
        inside = self._text[start : self._at].replace("\\`", "`").replace("\\$", "$")
        self._at += 1
        self._substitution(word, inside, "$(")

    def _substitution(self, word: _Word, script: str, opening: str) -> None:
        word.add(f"{opening}{script})")
        word.substitutions.append(script)
        self._nested(script)

    def _until_closed(self, closing: str) -> str:
        """The text up to the closing bracket that belongs here, quotes and inner brackets respected."""
        text, start, depth = self._text, self._at, 1
        opening = {")": "(", "}": "{"}[closing]
        while self._at < len(text):
            character = text[self._at]
            self._at += 1
            if character == "\\":
                self._at += 1
            elif character == "'":
                end = text.find("'", self._at)
                self._at = len(text) if end < 0 else end + 1
            elif character == '"':
                while self._at < len(text) and text[self._at] != '"':
                    self._at += 1 + (text[self._at] == "\\")
                self._at += 1
            elif character == opening:
                depth += 1
            elif character == closing:
                depth -= 1
                if depth == 0:
                    return text[start : self._at - 1]
        return text[start:]

    def _take_heredocs(self) -> None:
        """Read the bodies of the here-documents that the line just ended has announced."""
        for delimiter, strip in self._heredocs:
            lines = []
            while self._at < len(self._text):
                end = self._text.find("\n", self._at)
                end = len(self._text) if end < 0 else end
                line = self._text[self._at : end]
                self._at = min(end + 1, len(self._text))
                if (line.lstrip("\t") if strip else line) == delimiter:
                    break
                lines.append(line)
            self._bodies.append("\n".join(lines))
        self._heredocs = []
        if self._bodies:
            # Operators may have ended the command that it belongs to: all of the line see it, those that read it use it.
            body = self._bodies[-1]
            self._bodies = []
            if self._words or self._writes:
                self._stdin = body
            for index in self._heredoc_owner:
                self._give(index, body)
        self._heredoc_owner = []

    def _give(self, index: int, body: str) -> None:
        command = replace(self._found[index], stdin=body)
        self._found[index] = command
        self._run_stdin(command)

    def _end(self, *, piped: bool) -> None:
        """Finish the simple command that was read, if there is one."""
        words, writes, reads = self._words, tuple(self._writes), tuple(self._reads)
        stdin = self._stdin
        self._words, self._writes, self._reads, self._stdin = [], [], [], None
        while words and not words[0].quoted and words[0].text in _LEADING:
            words = words[1:]
        if words and not words[0].quoted and words[0].text in _CLOSING:
            words = words[1:]
        if words and words[0].text == "function":
            words = words[2:]
            while words and words[0].text == "{":
                words = words[1:]
        while words and (assigned := ASSIGNMENT.fullmatch(words[0].text)):
            if len(words) == 1 and not words[0].variables and not words[0].substitutions:
                self._assign(assigned[1], assigned[2])
            elif len(words) == 1:
                self._values.pop(assigned[1], None)
            words = words[1:]
        if words and words[0].text in {"export", "declare", "local", "readonly", "typeset"}:
            for word in words[1:]:
                if (assigned := ASSIGNMENT.fullmatch(word.text)) and not word.variables and not word.substitutions:
                    self._assign(assigned[1], assigned[2])
        if words or writes:
            command = Command(
                words=_split_unquoted(words),
                writes=writes,
                reads=reads,
                stdin=stdin,
                variables=frozenset().union(*(word.variables for word in words)),
                substitutions=tuple(script for word in words for script in word.substitutions),
                piped=tuple(self._pipeline),
                cwd=self._cwd,
            )
            self._add(command)
            if piped:
                self._pipeline.append(command)
        if not piped:
            self._pipeline = []

    def _assign(self, name: str, value: str) -> None:
        """Remember a short value: long ones, put together again and again, would grow without bound."""
        if len(value) <= MAX_VALUE:
            self._values[name] = value
        else:
            self._values.pop(name, None)

    def _add(self, command: Command) -> None:
        if not self._work.take(sum(map(len, command.words))):
            return
        inner = unwrapped(command)
        self._found.append(inner)
        if self._heredocs:
            self._heredoc_owner.append(len(self._found) - 1)
        if inner.name in {"cd", "pushd"}:
            self._change_folder(inner)
        self._scripts_within(inner)
        self._run_stdin(inner)

    def _change_folder(self, command: Command) -> None:
        targets = [word for word in command.words[1:] if not word.startswith("-") or word == "-"]
        target = targets[0] if targets else "~"
        self._cwd = target if target.startswith(("/", "~", "$")) else f"{self._cwd}/{target}"

    def _scripts_within(self, command: Command) -> None:
        """Scripts that the command is given as an argument."""
        words = command.words
        if command.name in SHELLS:
            script = script_of(words)
            if script is not None:
                self._nested(script)
        elif command.name == "eval":
            self._nested(" ".join(words[1:]))
        elif command.name == "su" and "-c" in words[1:-1]:
            self._nested(words[words.index("-c") + 1])
        elif command.name in {"find", "fd"}:
            for index in [index for index, word in enumerate(words) if word in _EXECUTES]:
                if self._depth >= MAX_DEPTH:
                    self._work.whole = False
                if not self._work.whole:
                    return
                inner = until(words[index + 1 :], {";", "+"})
                if inner:
                    self._depth += 1
                    self._add(replace(command, words=inner, stdin=None, piped=()))
                    self._depth -= 1
        elif command.name == "trap" and len(words) > 1:
            self._nested(words[1])

    def _run_stdin(self, command: Command) -> None:
        """What a shell reads from its standard input is a script too."""
        if command.name not in SHELLS or (len(command.words) > 1 and script_of(command.words) is not None):
            return
        if any(not word.startswith("-") for word in command.words[1:]):
            return
        if command.stdin is not None:
            self._nested(command.stdin)
        elif command.piped and command.piped[-1].name in {"echo", "printf"}:
            said = [word for word in command.piped[-1].words[1:] if not re.fullmatch(r"-[neE]+", word)]
            self._nested(" ".join(said).replace("\\n", "\n"))

    def _nested(self, script: str) -> None:
        if self._depth >= MAX_DEPTH:
            self._work.whole = False
        else:
            _Reader(script, self._work, dict(self._values), self._depth + 1, self._cwd).read()


def _split_unquoted(words: list[_Word]) -> tuple[str, ...]:
    """Words as the shell passes them on: a filled-in variable without quotes falls apart at white space."""
    split: list[str] = []
    for word in words:
        if not word.quoted and (braces := _BRACES.fullmatch(word.text)):
            split.extend(braces[1].split(","))
        elif word.quoted or word.substitutions or not re.search(r"\s", word.text):
            split.append(word.text)
        else:
            split.extend(word.text.split())
    return tuple(split)
