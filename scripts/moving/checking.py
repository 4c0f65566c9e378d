# SPDX-License-Identifier: Apache-2.0
"""Every definition in words that do not depend on where it stands: equal before and after a move."""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import Any

from moving.names import File, Project, Scope, chain_length
from moving.texts import Texts


class Canon:
    """A definition as text in which every name of ours is what it means after the move."""

    def __init__(self, project: Project, file: File, texts: Texts | None = None) -> None:
        self.project, self.file, self.texts = project, file, texts

    def dump(self, node: Any) -> str:
        if isinstance(node, list):
            kept = [n for n in node if not isinstance(n, ast.Import | ast.ImportFrom | ast.Pass)]
            return "[" + ", ".join(self.dump(n) for n in kept) + "]"
        if not isinstance(node, ast.AST):
            return repr(self.texts.rewrite(node) if self.texts and isinstance(node, str) else node)
        if isinstance(node, ast.Name | ast.Attribute):
            meaning, taken = self.project.meaning_of_chain(self.file, node)
            if meaning and (taken == chain_length(node)):
                new = self.project.new_meaning(meaning)
                return f"<{new.module}:{new.name}>"
        fields = []
        for key, value in ast.iter_fields(node):
            if key in ("kind", "type_comment"):
                continue
            if key == "name" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                value = self._new(node, value)
            elif key == "names" and isinstance(node, ast.Global):
                value = [self._new(node, name, self.file.scopes.module) for name in value]
            elif isinstance(node, ast.Call) and key == "args":
                fields.append(f"args={self._arguments(node)}")
                continue
            fields.append(f"{key}={self.dump(value)}")
        return f"{type(node).__name__}({', '.join(fields)})"

    def _new(self, node: ast.AST, name: str, scope: Scope | None = None) -> str:
        home = (scope or self.file.scopes.of[node]).find(name)
        return self.project.new_local(self.file, home, name) if home else name

    def _arguments(self, node: ast.Call) -> str:
        if (
            len(node.args) >= 2
            and isinstance(node.args[1], ast.Constant)
            and isinstance(node.args[1].value, str)
        ):
            meaning, taken = self.project.meaning_of_chain(self.file, node.args[0])
            if meaning and not meaning.name and taken == chain_length(node.args[0]):
                name = self.project.new_attribute(meaning.module, node.args[1].value)
                return self.dump([node.args[0]]) + repr(name) + self.dump(node.args[2:])
        first = node.args[0] if node.args else None
        is_import = ast.unparse(node.func).endswith("import_module")
        if is_import and isinstance(first, ast.Constant) and str(first.value).startswith("."):
            full = f"{self.file.package}{first.value!s}"  # `import_module(".x", __package__)`
            if full in self.project.modules:
                return repr(self.project.map.new_module(full)) + self.dump(node.args[1:])
        return self.dump(node.args)


def check(old: Project, new: Project) -> list[str]:
    """What differs between two trees besides what the map says."""
    texts = Texts(old)
    before: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    after: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for files, target, project in ((old.files, before, old), (new.files, after, new)):
        for path, file in files.items():
            canon = Canon(project, file, texts if project is old else None)
            key = (old.group(file) if project is old else file.module) or old.map.paths.get(path, path)
            for node in file.tree.body:
                is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
                if isinstance(node, ast.Import | ast.ImportFrom) or is_checking(node) or is_docstring:
                    continue
                bound = [
                    project.new_attribute(file.module, n) if project is old else n
                    for n in names_bound_by(node)
                ]
                if bound != ["__all__"]:
                    homes = (
                        [old.map.homes.get((file.module, n)) for n in names_bound_by(node)]
                        if project is old
                        else []
                    )
                    place = (
                        next(filter(None, homes), key) if bound else "statements"
                    )  # those go with what they use
                    target[place][" ".join(bound) or ast.unparse(node)[:60]].append(canon.dump(node))
    wrong = []
    for key in sorted({*before, *after}):
        for name in sorted({*before[key], *after[key]}):
            was, now = before[key].get(name, []), after[key].get(name, [])
            if set(was) != set(now):
                kind = "gone" if not now else "new" if not was else "differs"
                wrong.append(
                    f"{key}: {name}: {kind}" + (where_differs(was[0], now[0]) if kind == "differs" else "")
                )
    return wrong


def where_differs(was: str, now: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), min(len(was), len(now)))
    return f"\n    was ...{was[max(0, at - 60) : at + 60]}\n    now ...{now[max(0, at - 60) : at + 60]}"


def is_checking(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
        and not node.orelse
    )


def names_bound_by(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    return [
        n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    ]
