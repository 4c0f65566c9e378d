# SPDX-License-Identifier: Apache-2.0
"""The edits of one Python file, as byte ranges: all other bytes stay."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from typing import Any

from moving.names import TOP, File, Meaning, Project, Scope, at_home, chain_length, import_words, in_style_of
from moving.texts import Texts


class Editor(ast.NodeVisitor):
    """The edits that one file needs, as byte ranges; names are replaced where they stand."""

    def __init__(self, project: Project, file: File, texts: Texts) -> None:
        self.project, self.file, self.texts = project, file, texts
        self.scopes = file.scopes
        self.edits: dict[tuple[int, int], str] = {}
        self.in_fstrings: list[tuple[int, int, str, str]] = []  # span of the string, old words, new words
        self.fstring: tuple[int, int] | None = None
        self.patched: set[ast.expr] = set()  # modules in `setattr(module, "name", ...)`
        self.data = file.text.encode()
        self.starts = [0]
        for line in self.data.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.new_module = project.group(file)
        self.new_package = (
            self.new_module if file.path.endswith("/__init__.py") else self.new_module.rpartition(".")[0]
        )

    def run(self) -> str:
        self.visit(self.file.tree)
        self._edit_strings()
        data = self.data
        last = len(data) + 1
        for (start, end), new in sorted(self.edits.items(), reverse=True):
            assert end <= last, f"{self.file.path}: edits overlap at byte {start}: {new}"
            data = data[:start] + new.encode() + data[end:]
            last = start
        return data.decode()

    def at(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def span(self, node: Any) -> tuple[int, int]:
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def replace(self, start: int, end: int, old: str, new: str) -> None:
        if old == new:
            return
        if self.fstring:  # positions inside are not to be trusted before Python 3.12
            self.in_fstrings.append((*self.fstring, old, new))
        else:
            assert self.data[start:end].decode() == old, (self.file.path, self.data[start:end], old)
            self.edits[start, end] = new

    def new_name(self, name: str, scope: Scope) -> str:
        home = scope.find(name)
        return self.project.new_local(self.file, home, name) if home else name

    # Definitions and uses.

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        before = self.fstring
        self.fstring = before or self.span(node)
        self.generic_visit(node)
        self.fstring = before

    def visit_Name(self, node: ast.Name) -> None:
        if node.id == "__file__" and self.file.package != self.new_package:
            self.project.by_hand.append(f"{self.file.path}:{node.lineno}: __file__ is in another folder now")
        meaning, _ = self.project.meaning_of_chain(self.file, node)
        if meaning and not meaning.name and self._is_own_module(node, meaning):
            self.project.problems.append(
                f"{self.file.path}:{node.lineno}: {node.id} is this module itself, used as a value"
            )
        elif (
            meaning
            and not meaning.name
            and node not in self.patched
            and self.project.is_mixed(meaning.module)
        ):
            self.project.by_hand.append(
                f"{self.file.path}:{node.lineno}: {node.id} is a value here, and names of that module change"
            )
        self.replace(*self.span(node), node.id, self.new_name(node.id, self.scopes.of[node]))

    def _is_own_module(self, node: ast.Name, meaning: Meaning) -> bool:
        home = self.scopes.of[node].find(node.id)
        is_root = any(b and not b.base and not b.is_aliased for b in (home.names[node.id] if home else []))
        return (
            not is_root
            and self.new_module != ""
            and self.project.map.new_module(meaning.module) == self.new_module
        )

    def visit_FunctionDef(self, node: Any) -> None:
        new = self.new_name(node.name, self.scopes.of[node])
        if new != node.name:
            start, end = self.at(node.lineno, node.col_offset), self.at(node.body[0].lineno, 0) + 500
            found = re.compile(rb"(?:async\s+)?(?:def|class)\s+").match(self.data, start, end)
            assert found
            self.replace(found.end(), found.end() + len(node.name.encode()), node.name, new)
        self.generic_visit(node)

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        start, end = self.span(node)
        text = self.data[start:end].decode()
        scope = self.scopes.module if isinstance(node, ast.Global) else self.scopes.of[node]
        for name in node.names:
            new = self.new_name(name, scope)
            text = re.sub(rf"\b{name}\b", new, text)
        self.replace(start, end, self.data[start:end].decode(), text)

    visit_Nonlocal = visit_Global

    def visit_Attribute(self, node: ast.Attribute) -> None:
        meaning, taken = self.project.meaning_of_chain(self.file, node)
        if meaning is None or chain_length(node) > taken or not taken:
            self.generic_visit(node)
            return
        root: ast.expr = node
        words: list[str] = []
        while isinstance(root, ast.Attribute):
            words.insert(0, root.attr)
            root = root.value
        assert isinstance(root, ast.Name)
        old = ".".join([root.id, *words])
        new = self._chain_words(root, words, meaning)
        self.replace(
            *self.span(node), self.data[slice(*self.span(node))].decode() if not self.fstring else old, new
        )

    def _chain_words(self, root: ast.Name, words: list[str], meaning: Meaning) -> str:
        project = self.project
        base = project.meaning_of_name(self.file, root.id, self.scopes.of[root])
        assert base
        home = self.scopes.of[root].find(root.id)
        assert home
        whole = any(
            b and not b.base and not b.is_aliased for b in home.names[root.id]
        )  # `import feedrate.x.y`
        module = project.map.new_module(meaning.module)
        name = project.new_attribute(meaning.module, meaning.name) if meaning.name else ""
        if (meaning.module, meaning.name) in project.map.homes:
            return self._import_by_name(root, words, meaning, name)
        if whole:
            return ".".join([in_style_of(root.id, module), *([name] if name else [])])
        if name and module == self.new_module and meaning.module != self.file.module:
            found = self.scopes.of[root].find(name)
            if found not in (None, self.scopes.module) or (
                found and project.new_attribute(self.file.module, name) != name
            ):
                project.problems.append(
                    f"{self.file.path}:{root.lineno}: {'.'.join([root.id, *words])} becomes {name},"
                    " which is something else there"
                )
            return name
        local = self.new_name(root.id, self.scopes.of[root])
        between = words[:-1] if name else words
        new_base = project.map.new_module(base.module)
        if between and module != ".".join([new_base, *between]):
            if not module.startswith(f"{new_base}."):
                project.problems.append(
                    f"{self.file.path}:{root.lineno}: {root.id}.{'.'.join(words)} is now in {module}"
                )
            between = module.removeprefix(f"{new_base}.").split(".")
        return ".".join([local, *between, *([name] if name else [])])

    def _import_by_name(self, root: ast.Name, words: list[str], meaning: Meaning, name: str) -> str:
        """`leases.Lock` -> `Lock`, which has left that module, and an import of it."""
        if self.scopes.of[root].find(name):
            self.project.problems.append(
                f"{self.file.path}:{root.lineno}: {'.'.join([root.id, *words])} leaves its module, and"
                f" {name} is something else here; import it by its name first"
            )
        first = self.file.tree.body[0]
        for node in self.file.tree.body:
            if isinstance(node, ast.ImportFrom) and node.module == "__future__":
                first = node
        at = self.span(first)[1]
        line = f"\nfrom {self.project.new_meaning(meaning).module} import {name}"
        if line not in self.edits.get((at, at), ""):
            self.edits[at, at] = self.edits.get((at, at), "") + line
        return name

    # Imports.

    def visit_Import(self, node: ast.Import) -> None:
        words = []
        for alias in node.names:
            meaning = at_home(alias.name)
            new = self.project.map.new_module(meaning) if meaning in self.project.modules else meaning
            text = in_style_of(alias.name, new)
            words.append(f"{text} as {alias.asname}" if alias.asname else text)
        before = [f"{a.name} as {a.asname}" if a.asname else a.name for a in node.names]
        if words != before:
            self.replace(*self.span(node), self._source(node), "import " + ", ".join(dict.fromkeys(words)))

    def _source(self, node: ast.AST) -> str:
        return self.data[slice(*self.span(node))].decode()

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        imports = [found for found, _ in self.scopes.imports if found.statement is node]
        if imports[0].base.split(".")[0] != TOP:
            return
        scope = self.scopes.of[node]
        homes: dict[str, list[str]] = defaultdict(list)
        is_changed = False
        for found in imports:
            name = found.alias.name
            if name == "*":
                moved = self.project.map
                if moved.new_module(found.base) != found.base or any(
                    module == found.base for module, _ in (*moved.names, *moved.homes)
                ):
                    self.project.problems.append(
                        f"{self.file.path}:{node.lineno}: import * hides what it takes"
                    )
                return
            home, new = import_words(self.project, found.base, name)
            is_module = f"{found.base}.{name}" in self.project.modules
            if self.new_module and self.new_module == (f"{home}.{new}" if is_module else home):
                is_changed = True  # both are one module now
                continue
            local = self.new_name(found.local, scope)
            is_exported = found.alias.asname == name  # `import x as x`: for others to import from here
            words = new if new == local and not is_exported else f"{new} as {local}"
            homes[self._spell(node, home)].append(words)
            old_words = f"{name} as {found.alias.asname}" if found.is_aliased else name
            is_changed |= words != old_words or self._spell(node, home) != self._spelled(node)
        if not is_changed:
            return
        start, end = self.span(node)
        if "#" in self._source(node):
            self.project.by_hand.append(
                f"{self.file.path}:{node.lineno}: a comment inside an import was lost"
            )
        indent = " " * node.col_offset
        lines = [f"from {home} import {', '.join(dict.fromkeys(names))}" for home, names in homes.items()]
        if not lines and self._is_alone(node):
            lines = ["pass"]
        if not lines and self.data[end : end + 1] == b"\n":
            start, end = start - node.col_offset, end + 1
        self.edits[start, end] = f"\n{indent}".join(lines)

    def _is_alone(self, node: ast.stmt) -> bool:
        for parent in ast.walk(self.file.tree):
            for body in (getattr(parent, part, None) for part in ("body", "orelse", "finalbody")):
                if isinstance(body, list) and node in body:
                    return not isinstance(parent, ast.Module) and all(
                        isinstance(n, ast.ImportFrom) for n in body
                    )
        return False

    def _spelled(self, node: ast.ImportFrom) -> str:
        return "." * node.level + (node.module or "")

    def _spell(self, node: ast.ImportFrom, home: str) -> str:
        if not node.level:
            return in_style_of(str(node.module), home)
        mine, theirs = self.new_package.split("."), home.split(".")
        common = 0
        while common < min(len(mine), len(theirs)) and mine[common] == theirs[common]:
            common += 1
        return "." * (len(mine) - common + 1) + ".".join(theirs[common:])

    # Names in strings that stand for attributes of a module.

    def visit_Call(self, node: ast.Call) -> None:
        if (
            len(node.args) >= 2
            and isinstance(node.args[1], ast.Constant)
            and isinstance(node.args[1].value, str)
        ):
            meaning, taken = self.project.meaning_of_chain(self.file, node.args[0])
            if (
                meaning
                and not meaning.name
                and taken == chain_length(node.args[0])
                and meaning.module in self.project.modules
            ):
                self._rename_string(node.args[1], meaning.module)
                self.patched.add(node.args[0])
        first = node.args[0] if node.args else None
        if (
            isinstance(first, ast.Constant)
            and str(first.value).startswith(".")
            and ast.unparse(node.func).endswith("import_module")
        ):
            full = f"{self.file.package}{first.value!s}"  # `import_module(".x", __package__)`
            if full in self.project.modules:
                home, _, last = self.project.map.new_module(full).rpartition(".")
                relative = self._spell(ast.ImportFrom(module=None, names=[], level=1), home)
                dots = relative if relative.endswith(".") else f"{relative}."
                self.replace(*self.span(first), self._source(first), f'"{dots}{last}"')
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        """`{"feedrate.load.cache": ("Cache",)}`: the homes of names that are loaded when first used."""
        seen: set[str] = set()
        for key, value in zip(node.keys, node.values, strict=True):
            if (
                isinstance(key, ast.Constant)
                and isinstance(key.value, str)
                and key.value in self.project.modules
            ):
                new = self.project.map.new_module(key.value)
                if new in seen:
                    self.project.by_hand.append(
                        f"{self.file.path}:{key.lineno}: {new} is twice a key of one dict: join them"
                    )
                seen.add(new)
                for inner in ast.walk(value):
                    if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                        self._rename_string(inner, key.value)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            for inner in ast.walk(node.value):
                if isinstance(inner, ast.Constant):
                    self._rename_string(inner, self.file.module)
        self.generic_visit(node)

    def _rename_string(self, node: ast.Constant, module: str) -> None:
        name, dot, rest = str(node.value).partition(".")
        file = self.project.modules.get(module)
        if file is None or name not in file.scopes.module.names:
            return
        new = self.project.new_attribute(module, name)
        if (module, name) in self.project.map.homes:
            self.project.by_hand.append(
                f"{self.file.path}:{node.lineno}: {name} in a string has left {module}"
            )
        source = self._source(node)
        if new != name and source[1:-1] == node.value:
            self.edits[self.span(node)] = source[0] + new + dot + rest + source[0]

    def _edit_strings(self) -> None:
        taken = sorted(self.edits)
        for token in tokenize.generate_tokens(io.StringIO(self.file.text).readline):
            if token.type not in (tokenize.STRING, tokenize.COMMENT):
                continue
            start = self.at(token.start[0], len(token.line.split("\n")[0][: token.start[1]].encode()))
            end = start + len(token.string.encode())
            if (
                self.data[start:end].decode() != token.string
            ):  # the line of a token that begins in a later line
                line = self.data[self.starts[token.start[0] - 1] :].split(b"\n", 1)[0].decode()
                start = self.at(token.start[0], len(line[: token.start[1]].encode()))
                end = start + len(token.string.encode())
            if any(s <= start and end <= e for s, e in taken):
                continue
            text = token.string
            for first, last, old, new in dict.fromkeys(self.in_fstrings):
                if first <= start and end <= last and "f" in text[:2].lower():
                    text = replace_in_braces(text, old, new)
            for put_together in re.findall(rf"({TOP}[\w.]*)\.\{{", text):
                if any(m.startswith(f"{put_together}.") for m in self.project.map.modules):
                    self.project.by_hand.append(
                        f"{self.file.path}:{token.start[0]}: {put_together}.{{...}}: which module is it now?"
                    )
            text = self.texts.rewrite(text)
            if text != token.string:
                self.edits[start, end] = text


def replace_in_braces(text: str, old: str, new: str) -> str:
    """Rename in the expressions of an f-string."""
    out, depth, part = [], 0, ""
    for char in text.replace("{{", "\0").replace("}}", "\1") if "{{" in text else text:
        depth += {"{": 1, "}": -1}.get(char, 0)
        if depth and char not in "{}":
            part += char
            continue
        out.append(re.sub(rf"(?<![\w.]){re.escape(old)}(?!\w)", new, part) + char)
        part = ""
    return "".join(out).replace("\0", "{{").replace("\1", "}}")
