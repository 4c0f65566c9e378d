# SPDX-License-Identifier: Apache-2.0
"""Modules that become one, and definitions that leave theirs."""

from __future__ import annotations

import ast
import builtins
import graphlib
from collections import defaultdict
from dataclasses import dataclass

from moving.checking import Canon, is_checking, names_bound_by
from moving.names import File, Meaning, Project, Refused

LICENCE = "# SPDX-License-Identifier: Apache-2.0\n"


@dataclass
class Pieces:
    docstring: str
    imports: str
    checking: list[str]  # what stands under `if TYPE_CHECKING:`
    body: str


def split_module(text: str) -> Pieces:
    tree, lines = ast.parse(text), text.splitlines(keepends=True)
    docstring = ast.get_docstring(tree, clean=False) or ""
    statements = tree.body[1:] if docstring else tree.body
    head = []
    for node in statements:
        if not isinstance(node, ast.Import | ast.ImportFrom) and not is_checking(node):
            break
        head.append(node)
    first = (
        tree.body[0].end_lineno
        if docstring
        else next((i for i, line in enumerate(lines) if not line.startswith("#")), 0)
    )
    imports, checking, at = [], [], first or 0
    for node in head:
        if is_checking(node):
            checking += [ast.unparse(n) for n in node.body if not isinstance(n, ast.Pass)]  # type: ignore[attr-defined]
        elif not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            imports += lines[at : node.end_lineno]
        at = node.end_lineno or at
    return Pieces(
        docstring,
        "".join(line for line in imports if line.strip()),
        checking,
        "".join(lines[at:]).strip("\n"),
    )


def merge(project: Project, target: str, files: list[File], texts: dict[str, str]) -> str:
    """One module of several: those that others need at their top come first."""
    order: dict[str, set[str]] = {file.path: set() for file in files}
    for file in files:
        for found, scope in file.scopes.imports:
            meaning = project.meaning_of_import(found) if scope is file.scopes.module else None
            for other in files:
                if (
                    meaning
                    and meaning.module == other.module
                    and other is not file
                    and not in_checking(file, found.statement)
                ):
                    order[file.path].add(other.path)
    try:
        paths = list(graphlib.TopologicalSorter(order).static_order())
    except graphlib.CycleError as error:
        project.by_hand.append(
            f"{target}: {' and '.join(error.args[1])} import each other; merged in the map's order"
        )
        paths = list(order)
    find_clashes(project, target, files)
    dropped = find_equal(project, files)
    return assemble(target, [(texts[path], dropped.get(path, set())) for path in paths])


def assemble(target: str, parts: list[tuple[str, set[str]]], words: str = "") -> str:
    """One module of several texts, each less some definitions; imports and docstrings are put together."""
    pieces = [split_module(text) for text, _ in parts]
    raw = "".join(piece.imports for piece in pieces)
    seen = {
        (n.module, a.name, a.asname)
        for n in ast.parse(raw).body
        if isinstance(n, ast.ImportFrom)
        for a in n.names
    }
    late = []
    for line in dict.fromkeys(line for piece in pieces for line in piece.checking):
        node = ast.parse(line).body[0]
        if isinstance(node, ast.ImportFrom):
            node.names = [a for a in node.names if (node.module, a.name, a.asname) not in seen]
        if getattr(node, "names", True) and getattr(node, "module", "") != target:
            late.append(f"    {ast.unparse(node)}\n")
    block = "\nif TYPE_CHECKING:\n" + "".join(late) if late else ""
    words = words or "\n\n".join(piece.docstring.strip() for piece in pieces if piece.docstring)
    quote = '"""' if "\\" not in words else 'r"""'
    head = f'{LICENCE}{quote}{words}\n"""\n\n' if "\n" in words else f'{LICENCE}{quote}{words}"""\n\n'
    bodies, exported = [], []
    for piece, (_, dropped) in zip(pieces, parts, strict=True):
        body, names = without(piece.body, dropped)
        bodies.append(body)
        exported += names
    every = f"\n__all__ = {sorted(set(exported))!r}\n" if exported else ""
    text = f"{head}from __future__ import annotations\n\n{raw}{block}{every}\n" + "\n\n\n".join(bodies) + "\n"
    return without_own_imports(text, target)


def without_own_imports(text: str, target: str) -> str:
    """Less `from target import ...` at the top of target itself."""
    lines = text.splitlines(keepends=True)
    for node in reversed(ast.parse(text).body):
        if isinstance(node, ast.ImportFrom) and node.module == target:
            if any(a.asname for a in node.names):
                raise Refused(f"{target}: imports of its own under another name: {ast.unparse(node)}")
            del lines[node.lineno - 1 : node.end_lineno]
    return "".join(lines)


def take_out(project: Project, file: File, text: str) -> tuple[str, dict[str, str]]:
    """A module less the definitions that the map sends away; those, by target, as modules of their own."""
    leaving = {
        project.new_attribute(module, name): home
        for (module, name), home in project.map.homes.items()
        if module == file.module
    }
    lines, tree = text.splitlines(keepends=True), ast.parse(text)
    parts: dict[str, list[str]] = defaultdict(list)
    head = split_module(text)
    file_names = [name for node in tree.body for name in names_bound_by(node)]
    stay: set[str] = set()
    homes: dict[str, str] = {}
    gone: set[int] = set()
    for node in tree.body:
        bound = names_bound_by(node)
        targets = {leaving.get(name, "") for name in bound}
        if not bound and isinstance(
            node, ast.Expr
        ):  # goes with the one whose names it uses, as `register_at_fork(f)`
            used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            targets = {leaving.get(name, "") for name in used & set(file_names)}
        if len(targets) > 1:
            project.problems.append(
                f"{file.path}:{node.lineno}: {' '.join(bound)}: one statement; they go together or not at all"
            )
        home = targets.pop() if targets else ""
        if not home:
            stay.update(bound)
            continue
        homes |= dict.fromkeys(bound, home)
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
        while lines[first - 1].startswith("#"):
            first -= 1
        parts[home] += [*lines[first : node.end_lineno], "\n\n"]
        gone.update(range(first, node.end_lineno or first))
    rest = "".join(line for i, line in enumerate(lines) if i not in gone)
    mine = project.group(file)
    checking = (
        "if TYPE_CHECKING:\n" + "".join(f"    {line}\n" for line in head.checking) if head.checking else ""
    )
    made = {}
    for home, body in parts.items():
        words = "".join(body)
        needed = needed_imports(
            words, dict.fromkeys(stay, mine) | {n: h for n, h in homes.items() if h != home}
        )
        made[home] = f"{used_imports(head.imports, words)}{needed}{checking}\n\n{words}"
    back = needed_imports(rest, homes)
    if back and any(f"from {mine} import" in needed for needed in made.values()):
        project.by_hand.append(f"{file.path}: {mine} and what leaves it import each other")
    at = next(n.lineno for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__")
    return "".join(
        [*rest.splitlines(keepends=True)[:at], "\n", back, *rest.splitlines(keepends=True)[at:]]
    ), made


def used_imports(imports: str, text: str) -> str:
    """Those of some imports whose names a text uses."""
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    kept = []
    for node in ast.parse(imports).body:
        assert isinstance(node, ast.Import | ast.ImportFrom)
        node.names = [a for a in node.names if (a.asname or a.name.split(".")[0]) in used]
        if node.names:
            kept.append(ast.unparse(node) + "\n")
    return "".join(kept)


def needed_imports(text: str, homes: dict[str, str]) -> str:
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    return "".join(f"from {homes[name]} import {name}\n" for name in sorted(used & set(homes)))


def in_checking(file: File, node: ast.stmt) -> bool:
    return any(is_checking(block) and node in block.body for block in file.tree.body)  # type: ignore[attr-defined]


def without(body: str, names: set[str]) -> tuple[str, list[str]]:
    """A body less some definitions, and less its `__all__`, which is returned."""
    lines = body.splitlines(keepends=True)
    exported: list[str] = []
    gone: list[int] = []
    for node in ast.parse(body).body:
        bound = names_bound_by(node)
        if bound == ["__all__"]:
            exported = ast.literal_eval(node.value)  # type: ignore[attr-defined]
        if bound == ["__all__"] or (bound and set(bound) <= names):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            gone += range(first - 1, node.end_lineno or first)
    return "".join(line for i, line in enumerate(lines) if i not in set(gone)).strip("\n"), exported


def definitions(file: File) -> dict[str, ast.stmt]:
    return {name: node for node in file.tree.body for name in names_bound_by(node)}


def find_equal(project: Project, files: list[File]) -> dict[str, set[str]]:
    """Definitions that several of these modules have word for word: the first one stays."""
    seen: dict[str, str] = {}
    equal: dict[str, set[str]] = defaultdict(set)
    for file in files:
        for name, node in definitions(file).items():
            new, words = project.new_attribute(file.module, name), Canon(project, file).dump(node)
            if (
                name != "__all__"
                and seen.setdefault(new, words) == words
                and any(
                    new == project.new_attribute(o.module, n)
                    for o in files[: files.index(file)]
                    for n in definitions(o)
                )
            ):
                equal[file.path].add(new)
    return equal


def find_clashes(project: Project, target: str, files: list[File]) -> None:
    equal = find_equal(project, files)
    owners: dict[str, tuple[File, object]] = {}
    for file in files:
        module = file.scopes.module
        for name, bound in module.names.items():
            new = project.new_local(file, module, name)
            first = next((b for b in bound if b), None)
            what: object = (file.module, name)
            if (file.module, name) in project.map.homes:
                what = project.new_meaning(Meaning(file.module, name))  # imported from now on
            if first:
                meaning = project.meaning_of_import(first)
                what = (
                    project.new_meaning(meaning)
                    if meaning
                    else (first.base, first.alias.name, first.alias.asname)
                )
                if isinstance(what, Meaning) and target == what.module:
                    continue
                if isinstance(what, tuple) and not first.base and not first.is_aliased:
                    what = ("", first.local)
            if new == "__all__" or new in equal.get(file.path, set()):
                continue
            other, before = owners.setdefault(new, (file, what))
            if before != what:
                project.problems.append(
                    f"{target}: {new} is in {other.module} and in {file.module};"
                    f" say in the map: {file.module}:{name} -> ..."
                )
    for file in files:
        for name, scope in file.scopes.uses:
            if hasattr(builtins, name) and scope.find(name) is None and name in owners:
                project.problems.append(
                    f"{target}: {name} of {owners[name][0].module} hides Python's, which {file.module} uses"
                )


def find_repeated(project: Project, target: str, text: str) -> None:
    seen: set[str] = set()
    for name in (name for node in ast.parse(text).body for name in names_bound_by(node)):
        if name in seen and name != "__all__":
            project.problems.append(f"{target}: {name} would be there twice")
        seen.add(name)
