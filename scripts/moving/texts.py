# SPDX-License-Identifier: Apache-2.0
"""Renames in strings, comments and docs: only of what cannot be anything else."""

from __future__ import annotations

import re
from collections import defaultdict

from moving.names import HOOK, TOP, Project, at_home, import_words, in_style_of

DOTTED = re.compile(rf"(?<![\w.]){TOP}(?:_hook)?(?:\.\w+)+(?::\w+)?")
IMPORT = re.compile(rf"\bfrom ({TOP}[\w.]*) import ((?:\w+(?: as \w+)?)(?:, *\w+(?: as \w+)?)*)")
SOURCE_PATH = re.compile(rf"(?<![\w/.-])((?:src/)?(?:{TOP}/)?)((?:\w+/)+\w+)\.py\b")
TICKED = re.compile(r"`([A-Za-z_]\w*)((?:\.\w+)*(?:\([^`]*\))?)`")


class Texts:
    """Renames in what is not code: only what cannot be anything else."""

    def __init__(self, project: Project) -> None:
        self.project = project
        old_names: dict[str, set[str]] = defaultdict(set)
        for (_, old), new in project.map.names.items():
            old_names[old].add(new)
        defined: dict[str, set[str]] = defaultdict(set)
        for module, file in project.modules.items():
            for name, bound in file.scopes.module.names.items():
                if None in bound:
                    defined[name].add(module)
        self.unmistakable = {
            old: next(iter(new))
            for old, new in old_names.items()
            if len(new) == 1
            and all((m, old) in project.map.names for m in defined[old])
            and (old != old.lower() or "_" in old.strip("_"))
        }

    def rewrite(self, text: str) -> str:
        if TOP in text:
            text = self._rewrite_modules(text)
        if ".py" in text:
            text = SOURCE_PATH.sub(self._path, text)
        if "`" in text:
            text = TICKED.sub(lambda m: f"`{self.unmistakable.get(m[1], m[1])}{m[2]}`", text)
        return text

    def _rewrite_modules(self, text: str) -> str:
        """Each name once: what an import became may be the old name of something else."""
        parts, at = [], 0
        for match in IMPORT.finditer(text):
            parts += [DOTTED.sub(self._dotted, text[at : match.start()]), self._import(match)]
            at = match.end()
        return "".join([*parts, DOTTED.sub(self._dotted, text[at:])])

    def _dotted(self, match: re.Match[str]) -> str:
        whole, colon, entry = match[0].partition(":")
        parts = at_home(whole).split(".")
        length = next((n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in self.project.modules), 0)
        module, rest = ".".join(parts[:length]), parts[length:]
        if length < 2 and not (length and whole.startswith(HOOK)):
            return match[0]
        home = self.project.map.new_module(module)
        if rest:
            home = self.project.map.homes.get((module, rest[0]), home)
            rest[0] = self.project.new_attribute(module, rest[0])
        elif colon:
            home = self.project.map.homes.get((module, entry), home)
            entry = self.project.new_attribute(module, entry)
        return in_style_of(whole, ".".join([home, *rest])) + colon + entry

    def _import(self, match: re.Match[str]) -> str:
        base = at_home(match[1])
        homes: dict[str, list[str]] = defaultdict(list)
        for part in match[2].split(","):
            name, _, alias = part.strip().partition(" as ")
            home, new = import_words(self.project, base, name)
            local = alias or name
            homes[in_style_of(match[1], home)].append(new if new == local else f"{new} as {local}")
        return "; ".join(f"from {home} import {', '.join(names)}" for home, names in homes.items())

    def _path(self, match: re.Match[str]) -> str:
        module = f"{TOP}." + match[2].replace("/", ".")
        if module not in self.project.modules:
            return match[0]
        new = self.project.map.new_module(module)
        return match[1] + new.removeprefix(f"{TOP}.").replace(".", "/") + ".py"
