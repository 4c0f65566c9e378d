# SPDX-License-Identifier: Apache-2.0
"""Dependencies point one way: a layer imports only layers below it (see ARCHITECTURE.md)."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from support import paths

ROOT = paths.ROOT / "src" / "feedrate"

# From the top down. Names on one line never import each other.
LAYERS = [
    {"__main__"},
    {"cli"},
    {"demo"},
    {"doctor", "run", "packing", "bench", "plan", "watch"},
    {"lab", "hooking"},
    {"tensorflow", "jax"},
    {"loader"},
    {"source"},
    {"scratch"},
    {"cache"},
    {"remote"},
    {"format"},
    {"model"},
    {"files"},
    {"kernel", "machine", "stats", "draws"},
    {"calls", "recognise"},
    {"progress", "figures"},
    {"units", "filters", "documents"},
    {"errors", "arrays"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# Report draws what commands return, so it knows results, and nothing of how they came about.
REPORT_MAY_SEE = {"progress", "figures", "units", "errors"}


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_layers(path: Path) -> set[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # What runs in the user's processes is a package of its own there, so it names itself relatively.
            is_alone = "feedrate_hook" in path.parts or "recognise" in path.parts
            assert node.level == 0 or is_alone, f"{path}: relative imports hide the layer"
            names += [
                f"{node.module}.{a.name}" if node.module == "feedrate" else str(node.module)
                for a in node.names
            ]
    return {name.split(".")[1] for name in names if name.startswith("feedrate.")}


MODULES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_only_layers_below_its_own(path: Path) -> None:
    layer = layer_of(path)
    for other in imported_layers(path) - {layer}:
        if layer == "report":
            of_it = {m for m in imported_modules(path) if m.split(".")[1] == other}
            assert other in REPORT_MAY_SEE or of_it == {f"feedrate.{other}.results"}, (
                f"report imports {of_it}"
            )
        elif other == "report":
            assert layer == "cli", f"only cli may import report, not {layer}"
        elif other == "_native":
            assert layer == "kernel", "feedrate.kernel is the only door to the native module"
        else:
            assert LEVEL[other] > LEVEL[layer], f"{layer} must not import {other}"


# The same between the folders and modules inside of a layer; those on one line may import each other.
INSIDE = {
    "doctor": [
        {"examine", "compare"},
        {"no_result"},
        {"run"},
        {"findings"},
        {"analyse"},
        {"facts", "options", "results"},
        {"hook"},
    ],
    "packing": [
        {"change"},
        {"indexing"},
        {"build"},
        {"check"},
        {"options", "recode", "mapping", "tables", "values", "workers"},
        {"results"},
    ],
    "run": [{"launch"}, {"saved", "merging"}, {"results", "options"}, {"inside"}, {"hook"}],
}
# Folders that are bound to the layer around them in both directions: what they import of it, and what all
# others import of them. Nothing is added without thought.
BOUND = {
    "feedrate.doctor.hook": (set[str](), {"feedrate_hook.layout"}),
    "feedrate.hooking.startup": (set[str](), set[str]()),
    "feedrate.format.containers": (
        {"fields", "raw"},
        {"", "hdf5", "tar", "tfrecord"},
    ),
    "feedrate.kernel.cuda": ({"decoding", "binding"}, {"batch", "launcher"}),
    "feedrate.loader.device": (
        {"arguments", "batch", "cache", "cached_pixels", "geometry", "image", "options", "pipeline"},
        {"colour", "finish", "gpu_decode", "gpu_tier", "mixing", "transfer"},
    ),
}


def module_name(path: Path) -> str:
    return ".".join(("feedrate", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def imported_modules(path: Path) -> set[str]:
    known = {module_name(module) for module in MODULES}
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known
        elif isinstance(node, ast.ImportFrom) and not node.level:
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= whole & known or {str(node.module)} & known
    return found


@pytest.mark.parametrize("layer", INSIDE)
def test_inside_of_a_layer_folders_import_only_what_stands_below_them(layer: str) -> None:
    level = {name: at for at, names in enumerate(INSIDE[layer]) for name in names}
    above = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in MODULES
        if layer_of(path) == layer and path != ROOT / layer / "__init__.py"
        for module in imported_modules(path)
        if module.startswith(f"feedrate.{layer}.") and module.split(".")[2] != module_name(path).split(".")[2]
        if level[module.split(".")[2]] < level[module_name(path).split(".")[2]]
    }
    assert above == set()


@pytest.mark.parametrize("folder", BOUND)
def test_a_folder_inside_of_a_layer_is_bound_to_it_by_the_named_modules_only(folder: str) -> None:
    layer = folder.rpartition(".")[0]
    taken, given = set(), set()
    for path in MODULES:
        is_inside = f"{module_name(path)}.".startswith(f"{folder}.")
        for module in imported_modules(path):
            if is_inside and not f"{module}.".startswith(f"{folder}.") and module.startswith(f"{layer}."):
                taken.add(module.removeprefix(f"{layer}."))
            elif not is_inside and f"{module}.".startswith(f"{folder}."):
                given.add(module.removeprefix(folder).removeprefix("."))
    assert (taken, given) == BOUND[folder]


def test_every_folder_inside_of_a_layer_is_looked_at() -> None:
    packages = {module_name(path) for path in ROOT.rglob("*/*/__init__.py")}
    ordered = {f"feedrate.{layer}.{name}" for layer in INSIDE for names in INSIDE[layer] for name in names}
    assert {name for name in packages if name.count(".") == 2} - ordered <= set(BOUND)


def test_every_module_belongs_to_a_layer() -> None:
    assert {layer_of(p) for p in MODULES} <= set(LEVEL) | {"report"}


def test_every_source_file_carries_the_licence_line() -> None:
    native = ROOT.parent.parent / "native"
    files = [*MODULES, ROOT / "__init__.py", *native.rglob("*.cpp"), *native.rglob("*.h")]
    assert [
        p.name for p in files if "SPDX-License-Identifier: Apache-2.0" not in p.read_text().splitlines()[0]
    ] == []


HOOK = ROOT / "doctor" / "hook"
STARTUP = ROOT / "hooking" / "startup"
RUN_HOOK = ROOT / "run" / "hook"


@pytest.mark.parametrize(
    "path", sorted([*HOOK.rglob("*.py"), *STARTUP.glob("*.py"), *RUN_HOOK.glob("*.py")]), ids=lambda p: p.name
)
def test_the_hook_runs_where_feedrate_is_not_installed(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 8))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) and not node.level else []
        roots = {name.split(".")[0] for name in names}
        assert "feedrate" not in roots
        # Deeper inside, a module may be named that the user's code has imported.
        if roots and node.col_offset == 0:
            assert roots <= sys.stdlib_module_names | {"feedrate_hook", "feedrate_imports"}, (
                f"line {node.lineno}: {names}"
            )


@pytest.mark.parametrize("path", sorted((ROOT / "recognise").glob("*.py")), ids=lambda p: p.name)
def test_what_recognises_operations_imports_the_standard_library_alone(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) and not node.level else []
        assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names, names
