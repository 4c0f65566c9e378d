# SPDX-License-Identifier: Apache-2.0
"""What the map says, which scope binds what, and what a name means before and after the move."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

TOP = "feedrate"
HOOK = "feedrate_hook"  # a package of its own in the user's processes: it is named by its own path there
HOOK_HOME = "feedrate.doctor.hook.feedrate_hook"


class Refused(Exception):
    """What stands in the way, one line each; nothing was written."""


@dataclass
class Map:
    modules: dict[str, str] = field(default_factory=dict)
    names: dict[tuple[str, str], str] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    homes: dict[tuple[str, str], str] = field(default_factory=dict)  # of definitions that leave their module

    def new_module(self, module: str) -> str:
        parts = module.split(".")
        for length in range(len(parts), 0, -1):
            target = self.modules.get(".".join(parts[:length]))
            if target is not None:
                return ".".join([target, *parts[length:]])
        return module


def read_map(path: Path) -> Map:
    found, wrong = Map(), []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.split("#")[0].strip()
        old, arrow, new = (word.strip() for word in line.partition("->"))
        if line.startswith(("package ", "module ")):
            name, _, words = line.partition(" ")[2].partition(":")
            found.packages[name.strip()] = words.strip()
        elif "/" in old and arrow:
            found.paths[old] = new
        elif arrow and re.fullmatch(r"[\w.]+:\w+", old) and new.isidentifier():
            module, _, name = old.partition(":")
            found.names[module, name] = new
        elif arrow and re.fullmatch(r"[\w.]+:\w+", old) and re.fullmatch(r"[\w.]+:\w+", new):
            module, _, name = old.partition(":")
            found.homes[module, name], _, found.names[module, name] = new.partition(":")
        elif arrow and re.fullmatch(r"[\w.]+", old) and re.fullmatch(r"[\w.]+", new):
            if old in found.modules:
                wrong.append(f"{path}:{number}: {old} has two targets")
            found.modules[old] = new
        elif line:
            wrong.append(f"{path}:{number}: not a line of a map: {line}")
    if wrong:
        raise Refused("\n".join(wrong))
    return found


@dataclass(eq=False)
class Import:
    """One name of an import statement: what it binds, in which words."""

    statement: ast.Import | ast.ImportFrom
    alias: ast.alias
    base: str  # the module after `from`, absolute; "" for `import`

    @property
    def local(self) -> str:
        return self.alias.asname or (self.alias.name if self.base else self.alias.name.split(".")[0])

    @property
    def is_aliased(self) -> bool:
        return self.alias.asname is not None


@dataclass(eq=False)
class Scope:
    kind: str
    parent: Scope | None
    names: dict[str, list[Import | None]] = field(default_factory=lambda: defaultdict(list))
    outer: set[str] = field(default_factory=set)  # declared global or nonlocal

    def find(self, name: str) -> Scope | None:
        """The scope that binds this name, as Python looks it up."""
        scope: Scope | None = self
        while scope:
            if name in scope.names and name not in scope.outer and (scope is self or scope.kind != "class"):
                return scope
            scope = scope.parent
        return None

    def up_to(self, last: Scope) -> Iterator[Scope]:
        scope: Scope | None = self
        while scope and scope is not last:
            yield scope
            scope = scope.parent


class Scopes(ast.NodeVisitor):
    """Which scope binds what, and where each name is used."""

    def __init__(self, tree: ast.Module, package: str) -> None:
        self.package = package
        self.module = self.here = Scope("module", None)
        self.uses: list[tuple[str, Scope]] = []
        self.of: dict[ast.AST, Scope] = {}
        self.imports: list[tuple[Import, Scope]] = []
        self.visit(tree)

    def bind(self, name: str, what: Import | None = None) -> None:
        scope = self.here
        if name in scope.outer:
            scope = (scope.parent and scope.parent.find(name)) or self.module
        scope.names[name].append(what)

    def inside(self, kind: str, *parts: Any, bound: Iterable[str] = ()) -> None:
        self.here = Scope(kind, self.here)
        for name in bound:
            self.bind(name)
        # Declarations first: they hold for the whole body.
        for part in parts:
            for node in part if isinstance(part, list) else [part]:
                for inner in own_nodes(node):
                    if isinstance(inner, ast.Global | ast.Nonlocal):
                        self.here.outer.update(inner.names)
        self.see(*parts)
        assert self.here.parent
        self.here = self.here.parent

    def see(self, *parts: Any) -> None:
        for part in parts:
            for node in part if isinstance(part, list) else [part]:
                if node is not None:
                    self.visit(node)

    def visit(self, node: ast.AST) -> None:
        self.of[node] = self.here
        super().visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.bind(node.name)
        self.see(node.decorator_list, node.returns)
        self._function(node.args, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._function(node.args, node.body)

    def _function(self, args: ast.arguments, body: Any) -> None:
        every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
        self.see(args.defaults, args.kw_defaults, [a.annotation for a in every if a])
        self.inside("function", body, bound=[a.arg for a in every if a])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.bind(node.name)
        self.see(node.decorator_list, node.bases, node.keywords)
        self.inside("class", node.body)

    def _comprehension(self, node: Any) -> None:
        first, *rest = node.generators
        self.see(first.iter)
        values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self.inside("comprehension", first.target, first.ifs, rest, values)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.see(node.value)
        inner = self.here
        while self.here.kind == "comprehension" and self.here.parent:
            self.here = self.here.parent
        self.bind(node.target.id)
        self.here = inner
        self.of[node.target] = inner
        self.uses.append((node.target.id, inner))

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.bind(node.id)
        self.uses.append((node.id, self.here))

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.bind(node.name)
        self.generic_visit(node)

    def visit_MatchAs(self, node: Any) -> None:
        name = getattr(node, "name", None) or getattr(node, "rest", None)
        if name:
            self.bind(name)
        self.generic_visit(node)

    visit_MatchStar = visit_MatchMapping = visit_MatchAs

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        base = ""
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = self.package.split(".")[: len(self.package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
        for alias in node.names:
            found = Import(node, alias, at_home(base))
            self.imports.append((found, self.here))
            self.bind(found.local, found)

    visit_ImportFrom = visit_Import


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """A statement and what is inside it, but not inside the functions and classes that it defines."""
    yield node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from own_nodes(child)


def at_home(module: str) -> str:
    """The one full name of a module of the hook."""
    return HOOK_HOME + module.removeprefix(HOOK) if module.split(".")[0] == HOOK else module


@dataclass(eq=False)
class File:
    path: str
    module: str  # "" for a file that nobody imports by a name of ours
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def package(self) -> str:
        return self.module if self.path.endswith("/__init__.py") else self.module.rpartition(".")[0]

    @cached_property
    def scopes(self) -> Scopes:
        return Scopes(self.tree, self.package)


@dataclass(frozen=True)
class Meaning:
    """A module of ours, or a name at the top of one."""

    module: str
    name: str = ""


class Project:
    """All Python of a tree, and what the map makes of its names."""

    def __init__(self, texts: dict[str, str], renames: Map) -> None:
        self.map = renames
        self.files = {
            path: File(path, module_of(path), text) for path, text in texts.items() if is_python(path, text)
        }
        self.modules = {file.module: file for file in self.files.values() if file.module}
        self.problems: list[str] = []
        self.by_hand: list[str] = []
        self._locals: dict[Scope, dict[str, str]] = {}

    # Meanings, in the words of before.

    def meaning_of_import(self, found: Import) -> Meaning | None:
        if not found.base:
            full = at_home(found.alias.name)
            if full.split(".")[0] != TOP:
                return None
            short = not found.is_aliased
            return Meaning(at_home(found.alias.name.split(".")[0]) if short else full)
        if found.base.split(".")[0] != TOP:
            return None
        full = f"{found.base}.{found.alias.name}"
        return Meaning(full) if full in self.modules else self.origin(Meaning(found.base, found.alias.name))

    def origin(self, meaning: Meaning) -> Meaning:
        """Where a name is defined that some module has only imported."""
        for _ in range(10):
            file = self.modules.get(meaning.module)
            bound = file.scopes.module.names.get(meaning.name) if file and meaning.name else None
            imports = [b for b in bound or [] if b]
            if not imports:
                break
            further = self.meaning_of_import(imports[0])
            if further is None or further == meaning:
                break
            meaning = further
        return meaning

    def meaning_of_name(self, file: File, name: str, scope: Scope) -> Meaning | None:
        home = scope.find(name)
        if home is None:
            return None
        imports = [b for b in home.names[name] if b]
        if imports:
            return self.meaning_of_import(imports[0])
        return Meaning(file.module, name) if home is file.scopes.module and file.module else None

    def meaning_of_chain(self, file: File, node: ast.expr) -> tuple[Meaning | None, int]:
        """What `a.b.c` means, and how many of its attributes that takes."""
        if isinstance(node, ast.Name):
            return self.meaning_of_name(file, node.id, file.scopes.of[node]), 0
        if not isinstance(node, ast.Attribute):
            return None, 0
        meaning, taken = self.meaning_of_chain(file, node.value)
        if meaning is None or meaning.name or taken != chain_length(node.value):
            return meaning, taken
        full = f"{meaning.module}.{node.attr}"
        if full in self.modules:
            return Meaning(full), taken + 1
        return Meaning(meaning.module, node.attr), taken + 1

    # What becomes of them.

    def new_meaning(self, meaning: Meaning) -> Meaning:
        meaning = self.origin(meaning)
        module = self.map.homes.get((meaning.module, meaning.name)) or self.map.new_module(meaning.module)
        name = self.map.names.get((meaning.module, meaning.name), meaning.name)
        return Meaning(module, name)

    def new_attribute(self, module: str, name: str) -> str:
        """What `module.name` is called there afterwards."""
        file = self.modules.get(module)
        return self.new_local(file, file.scopes.module, name) if file else name

    def is_mixed(self, module: str) -> bool:
        """Whether names of a module change, or it becomes one with others."""
        target = self.map.new_module(module)
        sources = [m for m in self.modules if m != module and self.map.new_module(m) == target]
        return bool(sources) or any(m == module for m, _ in self.map.names)

    def group(self, file: File) -> str:
        return self.map.new_module(file.module) if file.module else ""

    def new_local(self, file: File, scope: Scope, name: str) -> str:
        if scope not in self._locals:
            self._locals[scope] = {n: n for n in scope.names}  # for those that ask in a circle
            self._locals[scope] = self._choose_locals(file, scope)
        return self._locals[scope].get(name, name)

    def _wish(self, file: File, scope: Scope, name: str) -> tuple[str, Meaning | None]:
        bound = scope.names[name]
        wish = self.map.names.get((file.module, name)) if scope is file.scopes.module else None
        imports = [b for b in bound if b]
        if not imports:
            return wish or name, None
        meaning = self.meaning_of_import(imports[0])
        if meaning is None:
            return wish or name, None
        new = self.new_meaning(meaning)
        is_own = bool(new.name) and new.module == self.group(file)  # they are in one module from now on
        is_this_module = (
            not new.name and new.module == self.group(file) and meaning.module != file.module
        )  # its uses and it go away
        if is_this_module or (None in bound and not is_own):
            return name, new
        if wish and not is_own:
            return wish, new
        if imports[0].is_aliased and not is_own:
            return name, new
        if not imports[0].base and not imports[0].is_aliased:
            return name, new
        return new.name or new.module.rpartition(".")[2], new

    def _choose_locals(self, file: File, scope: Scope) -> dict[str, str]:
        wishes = {name: self._wish(file, scope, name) for name in list(scope.names)}
        chosen = {name: wish for name, (wish, _) in wishes.items()}
        is_settled = False
        while not is_settled:
            is_settled = True
            for name, wish in chosen.items():
                if wish == name:
                    continue
                meaning = wishes[name][1]
                others = [o for o, w in chosen.items() if w == wish and o != name]
                clash = any(wishes[o][1] != meaning or meaning is None for o in others)
                why = self._capture(file, scope, name, wish) or (
                    "another name there is called so" if clash else ""
                )
                if not why:
                    continue
                where = f"{file.path}: {name} cannot become {wish}: {why}"
                if meaning is None or meaning.module == self.group(file):
                    self.problems.append(where)
                else:
                    self.by_hand.append(f"{where} (imported `as {name}`)")
                chosen[name] = name
                is_settled = False
                break
        return chosen

    def _capture(self, file: File, home: Scope, name: str, wish: str) -> str:
        """Why a use of `name` would mean something else as `wish`, or the other way round."""
        for used, scope in file.scopes.uses:
            if used == name and scope.find(name) is home:
                inner = next((s for s in scope.up_to(home) if wish in s.names), None)
                if inner and not self._is_same_import(file, inner, wish, home, name):
                    return "a function there has a variable of that name"
            if (
                used == wish
                and wish not in home.names
                and home in (*scope.up_to(file.scopes.module), file.scopes.module)
            ):
                found = scope.find(wish)
                if found is None or (found is not home and found not in scope.up_to(home)):
                    return f"{wish} is used there for something else"
        return ""

    def _is_same_import(self, file: File, inner: Scope, wish: str, home: Scope, name: str) -> bool:
        return self._wish(file, inner, wish)[1] == self._wish(file, home, name)[1] is not None


def chain_length(node: ast.expr) -> int:
    return 1 + chain_length(node.value) if isinstance(node, ast.Attribute) else 0


def is_python(path: str, text: str) -> bool:
    return path.endswith(".py") or (path.startswith("scripts/") and "python" in text.split("\n", 1)[0])


def module_of(path: str) -> str:
    parts = PurePosixPath(path).with_suffix("").parts
    if parts[:2] != ("src", TOP):
        return ""
    return ".".join(parts[1:]).removesuffix(".__init__")


def path_of(module: str, is_package: bool) -> str:
    return "src/" + module.replace(".", "/") + ("/__init__.py" if is_package else ".py")


def in_style_of(old: str, new: str) -> str:
    """The hook's modules stay named by their own path where they were."""
    return HOOK + new.removeprefix(HOOK_HOME) if old.split(".")[0] == HOOK else new


def import_words(project: Project, base: str, name: str) -> tuple[str, str]:
    """`from base import name` -> the words of afterwards."""
    if f"{base}.{name}" in project.modules:
        home, _, last = project.map.new_module(f"{base}.{name}").rpartition(".")
        return home, last
    home = project.map.homes.get((base, name)) or project.map.new_module(base)
    return home, project.new_attribute(base, name)
