"""Code that an interpreter is given on its command line or standard input: the commands, deletions and writes in it.

Python is parsed; of other languages the literal calls are found by pattern, and code that could reach a shell in another way
is not known. Code in a file of the workspace is not looked at: running it is what agents do.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

PYTHON: Final = re.compile(r"(python|pypy)[\d.]*")
LATE: Final = "runs code that cannot be looked through"
MAX_CODE: Final = 20_000

_RUN: Final = frozenset({
    "system", "popen", "Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput", "spawn",
    "create_subprocess_exec", "create_subprocess_shell",
})  # fmt: skip
_MODULES: Final = frozenset({"os", "subprocess", "sp", "asyncio", "pty", "commands", "sh"})
_DYNAMIC: Final = frozenset(
    {"eval", "exec", "compile", "__import__", "import_module", "getattr", "globals", "vars", "run_path"}
)
_SENDING_MODULES: Final = frozenset(
    {"socket", "smtplib", "ftplib", "telnetlib", "paramiko", "ctypes", "pty", "pickle", "marshal"}
)
_REMOVES: Final = frozenset({"rmtree", "removedirs"})
_CHANGES: Final = frozenset({"remove", "unlink", "rmdir", "rename", "replace", "move", "copy", "copy2", "copyfile", "copytree",
                             "symlink", "link", "chmod", "chown", "mkdir", "makedirs", "write_text", "write_bytes", "touch",
                             "open"})  # fmt: skip
_METHODS: Final = frozenset({"write_text", "write_bytes", "touch"})
_TWO_PATHS: Final = frozenset({"rename", "replace", "move", "copy", "copy2", "copyfile", "copytree", "symlink", "link"})
_FAR: Final = re.compile(
    r"(/(bin|boot|dev|etc|home|lib\w*|mnt|opt|proc|root|run|sbin|srv|sys|usr|var)(/|$)|~|\.\.(/|$))\S*$"
)
_CALLS: Final = re.compile(
    r"(?:system|popen|Popen|run|call|check_call|check_output|getoutput|execSync|exec|spawn|spawnSync|shell_exec|`)\s*\(\s*"
    r"(\[[^\]\n]{0,2000}\]|'[^'\n]{0,2000}'|\"[^\"\n]{0,2000}\")"
)
_REMOVED: Final = re.compile(r"(?:rmtree|rm_rf|rm_r|rmSync|removeSync|rimraf)\s*\(?\s*['\"]([^'\"\n]{0,500})['\"]")
_OPENED: Final = re.compile(r"(?:open|writeFileSync|appendFileSync)\(\s*['\"]([^'\"\n]{1,500})['\"]")
_REACHES: Final = re.compile(
    r"\b(system|popen|exec\w*|spawn\w*|child_process|fork|eval|Function|shell_exec|passthru|proc_open|qx|IO|Process|"
    r"unlink\w*|rm\w*Sync|writeFile\w*|require\s*\(\s*[^'\"\s]|rmdir\w*|fetch|https?|net|socket|Socket|base64|atob)\b|`|%x"
)


@dataclass(frozen=True, slots=True)
class CodeEffects:
    """``scripts``: commands it runs. ``removed``: trees it deletes. ``written``: files it may write.
    ``late``: it reaches further than its text shows.
    """

    scripts: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    late: bool = False


def effects_of(interpreter: str, code: str) -> CodeEffects:
    """Never raises: code that cannot be parsed is ``late``."""
    if len(code) > MAX_CODE:
        return CodeEffects(late=True)
    if not PYTHON.fullmatch(interpreter):
        return _by_pattern(code)
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        found = _by_pattern(code)
        return CodeEffects(found.scripts, found.removed, found.written, late=True)
    return _of_python(list(ast.walk(tree)))


def _by_pattern(code: str) -> CodeEffects:
    scripts = [_command(match[1]) for match in _CALLS.finditer(code)]
    rest = _CALLS.sub("", code).replace("require('child_process').", "").replace('require("child_process").', "")
    return CodeEffects(
        tuple(scripts),
        tuple(match[1] for match in _REMOVED.finditer(code)),
        tuple(match[1] for match in _OPENED.finditer(code)),
        late=_REACHES.search(rest) is not None,
    )


def _command(literal: str) -> str:
    parts = re.findall(r"'([^']*)'|\"([^\"]*)\"", literal) if literal.startswith("[") else []
    return " ".join(first or second for first, second in parts) if parts else literal[1:-1]


def _of_python(nodes: list[ast.AST]) -> CodeEffects:
    modules = {name.partition(".")[0] for name in _imported(nodes)}
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    late = bool(modules & _SENDING_MODULES)
    scripts: list[str] = []
    removed: list[str] = []
    written: list[str] = []
    for call in calls:
        name, owner = _called(call)
        if (
            name in _DYNAMIC
            and not (name == "compile" and owner == "re")
            and not (name == "getattr" and _literal_name(call))
        ) or (name.startswith(("exec", "spawn", "posix_spawn")) and owner in _MODULES):
            late = True
        elif name in _RUN and (owner in _MODULES or not owner):
            script = _script(call, name)
            late = late or (script is None and bool(modules & _MODULES))
            scripts += [script] if script is not None else []
        elif name in _REMOVES:
            path = _text(call.args[0]) if call.args else None
            late = late or path is None
            removed += [path] if path is not None else []
        elif (
            name in _CHANGES
            and not (name == "open" and _only_reads(call))
            and not (name == "replace" and owner != "os")
        ):
            paths = _paths(call, name)
            late = late or (None in paths and bool({"expanduser", "home", "environ", "getenv"} & _names(nodes)))
            written += [path for path in paths if path is not None]
            # Otherwise the path is put together from texts of the code.
            written += [text for text in texts if None in paths and _FAR.match(text)]
    # A reference that is not a call, kept under another name.
    called = {id(call.func) for call in calls}
    for node in nodes:
        if (
            isinstance(node, ast.Attribute)
            and id(node) not in called
            and _owner(node.value) in _MODULES
            and (node.attr in _RUN or node.attr.startswith(("exec", "spawn")))
        ):
            late = True
    return CodeEffects(tuple(scripts), tuple(removed), tuple(written), late)


def _paths(call: ast.Call, name: str) -> list[str | None]:
    """Where a call writes; None for a path that is not a literal."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if name in _METHODS or (name == "open" and isinstance(owner, ast.Call)) or (owner is not None and not call.args):
        return [_text(owner) if owner is not None else None]
    if not call.args:
        return [None]
    return (
        [_text(each) for each in (call.args[:2] if name in {"move", "rename", "replace"} else call.args[-1:])]
        if (name in _TWO_PATHS)
        else [_text(call.args[0])]
    )


def _imported(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def _names(nodes: list[ast.AST]) -> set[str]:
    return {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def _owner(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else "?"


def _called(call: ast.Call) -> tuple[str, str]:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr, _owner(call.func.value)
    return (call.func.id, "") if isinstance(call.func, ast.Name) else ("eval", "")


def _literal_name(call: ast.Call) -> bool:
    return len(call.args) > 1 and isinstance(call.args[1], ast.Constant) and call.args[1].value not in _RUN


def _text(node: ast.expr) -> str | None:
    """The value of a literal text, or of ``Path("…")``."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Call) and _called(node)[0] in {"Path", "PurePath"} and len(node.args) == 1:
        return _text(node.args[0])
    return None


def _script(call: ast.Call, name: str) -> str | None:
    """The command that a call runs; None when it is not a literal."""
    if not call.args:
        return None
    first = call.args[0]
    if isinstance(first, ast.List | ast.Tuple):
        parts = [_text(each) for each in first.elts]
        if parts and isinstance(first.elts[0], ast.Attribute) and first.elts[0].attr == "executable":
            parts[0] = "python"
        return (
            None
            if not parts or None in parts
            else " ".join("'" + str(part).replace("'", "'\\''") + "'" for part in parts)
        )
    if name == "create_subprocess_exec":
        parts = [_text(each) for each in call.args]
        return None if None in parts else " ".join("'" + str(part).replace("'", "'\\''") + "'" for part in parts)
    return _text(first)


def _only_reads(call: ast.Call) -> bool:
    at = 0 if isinstance(call.func, ast.Attribute) and _owner(call.func.value) not in {"io", "codecs", "gzip"} else 1
    mode = next(
        (each.value for each in call.keywords if each.arg == "mode"), call.args[at] if len(call.args) > at else None
    )
    return mode is None or (isinstance(mode, ast.Constant) and not re.search(r"[wax+]", str(mode.value)))
