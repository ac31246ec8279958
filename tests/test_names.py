"""Words that no identifier is made of, and class names that mean one thing.

``python tests/test_names.py`` prints what there is as a table; with ``--record`` it writes ``names_to_replace.txt``, the list of
older names that are still to be replaced. That list only becomes shorter.
"""

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = [ROOT / name for name in ("agents", "platform", "workflows", "apps") if (ROOT / name).is_dir()]

BANNED = frozenset(
    [
        "crew",
        "talk",
        "converse",
        "furnish",
        "furnishing",
        "workplace",
        "standing",
        "fresh",
        "told",
        "held",
        "tell",
        "tells",
        "say",
        "says",
        "said",
        "saying",
        "hear",
        "hears",
        "heard",
        "put_away",
        "carry_out",
        "wanted",
        "whoever",
        "nobody",
        "somebody",
        "gave_way",
        "give_way",
        "gives_way",
        "in_sandbox",
    ]
)
"""Words, or words joined by underscores. The glossary has the terms to use in their place."""


def words_of(identifier: str) -> list[str]:
    return re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", identifier)


def banned_in(identifier: str) -> list[str]:
    words = [word.lower() for word in words_of(identifier)]
    joined = f"_{'_'.join(words)}_"
    return [word for word in BANNED if f"_{word}_" in joined]


def modules():
    for source in SOURCES:
        for path in sorted(source.rglob("*.py")):
            if "/demos/" not in str(path):
                yield path, ast.parse(path.read_text())


def identifiers(tree):
    """The names that a module defines: classes, functions, parameters, variables, attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def offenders():
    """Where each identifier with a banned word is defined."""
    found = defaultdict(set)
    for path, tree in modules():
        for name in identifiers(tree):
            if banned_in(name):
                found[name].add(str(path.relative_to(ROOT)))
        if banned_in(path.stem):
            found[path.stem].add(str(path.relative_to(ROOT)))
    return found


def repeated_classes():
    found = defaultdict(list)
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(ROOT)))
    return {name: paths for name, paths in found.items() if len(paths) > 1}


REMAINING = Path(__file__).with_name("names_to_replace.txt")


def remaining():
    return set(REMAINING.read_text().split())


def test_no_identifier_is_made_of_a_banned_word():
    new = {name: sorted(paths) for name, paths in offenders().items() if name not in remaining()}
    assert new == {}, "use a term of docs/glossary.md or of the field"


def test_a_class_name_means_one_thing():
    new = {name: paths for name, paths in repeated_classes().items() if name not in remaining()}
    assert new == {}, "name each class for what it is"


def test_banned_words_are_found_in_every_spelling():
    assert banned_in("TaskFurnishing") == ["furnishing"]
    assert banned_in("_put_away_at") == ["put_away"]
    assert banned_in("HELD_BYTES") == ["held"]
    assert banned_in("TestTelling") == banned_in("refresh") == banned_in("withheld") == banned_in("crews") == []


def main():
    if "--record" in sys.argv:
        REMAINING.write_text("\n".join(sorted({*offenders(), *repeated_classes()})) + "\n")
        return
    for found in (offenders(), repeated_classes()):
        for name, paths in sorted(found.items()):
            print(f"{name}\t{len(paths)}\t{', '.join(sorted(paths))}")
        print()


if __name__ == "__main__":
    main()
