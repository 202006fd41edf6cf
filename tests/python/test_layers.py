"""The direction of dependencies: C++ includes by cpp/LAYERS.md, Python imports by package."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.native import ROOT

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<(kvcache/[^>]+)>)', re.MULTILINE)
ROW = re.compile(r"^\| (\d+) \| `(\w+)` \| .* \| (.*) \|$", re.MULTILINE)


def layers(cpp: Path) -> dict[str, tuple[int, str]]:
    """Folder -> (number, its doors as written) of the table in LAYERS.md."""
    table = ROW.findall((cpp / "LAYERS.md").read_text())
    return {folder: (int(number), doors) for number, folder, doors in table}


def sources(folder: Path) -> list[Path]:
    return sorted([*folder.rglob("*.h"), *folder.rglob("*.cc"), *folder.rglob("*.cu")])


def check_include(cpp: Path, file: Path, target: str) -> str | None:
    """Why `file` may not include `target`, or None."""
    known = layers(cpp)
    if target.startswith("kvcache/"):
        return None if (cpp / "include" / target).is_file() else "no such public header"
    if file.is_relative_to(cpp / "include"):
        return "a public header may include only public headers"
    bindings = cpp / "bindings"
    if "/" not in target:
        return None if (file.parent / target).is_file() else "no such header beside it"
    own = "bindings" if file.is_relative_to(bindings) else file.relative_to(cpp / "src").parts[0]
    other = target.split("/")[0]
    if own not in known or other not in known:
        return f"{own if own not in known else other} is no layer of LAYERS.md"
    if not (cpp / "src" / target).is_file():
        return "no such header"
    if own == other:
        return None
    (number, _), (below, doors) = known[own], known[other]
    if below >= number:
        return f"layer {number} ({own}) may not include layer {below} ({other})"
    if doors != "all of its headers" and f"`{target}`" not in doors:
        return f"{target} is no door of {other}"
    return None


def violations(cpp: Path) -> list[str]:
    found = []
    for folder in ("include", "src", "bindings"):
        for file in sources(cpp / folder):
            for quoted, public in INCLUDE.findall(file.read_text()):
                if why := check_include(cpp, file, quoted or public):
                    found.append(f"{file.relative_to(cpp)} -> {quoted or public}: {why}")
    return found


def test_every_include_goes_down_and_through_a_door() -> None:
    assert len(sources(ROOT / "cpp")) > 10
    assert not violations(ROOT / "cpp")


@pytest.mark.parametrize(
    ("file", "line", "why"),
    [
        ("src/low/a.cc", '#include "high/door.h"', "layer 0 (low) may not include layer 1 (high)"),
        ("src/high/a.cc", '#include "low/hidden.h"', "low/hidden.h is no door of low"),
        (
            "src/high/a.cc",
            '#include "side/door.h"',
            "layer 1 (high) may not include layer 1 (side)",
        ),
        ("src/high/a.cc", '#include "nowhere/x.h"', "nowhere is no layer of LAYERS.md"),
        ("src/high/a.cc", "#include <kvcache/no.h>", "no such public header"),
        ("include/kvcache/a.h", '#include "low/door.h"', "a public header may include only"),
        ("bindings/a.cc", '#include "low/hidden.h"', "low/hidden.h is no door of low"),
    ],
)
def test_a_wrong_include_is_found(tmp_path: Path, file: str, line: str, why: str) -> None:
    (tmp_path / "LAYERS.md").write_text(
        "| 0 | `low` | x | `low/door.h` |\n| 1 | `high` | x | `high/door.h` |\n"
        "| 1 | `side` | x | `side/door.h` |\n| 2 | `bindings` | x | - |\n"
    )
    for header in ("low/door.h", "low/hidden.h", "high/door.h", "side/door.h"):
        (tmp_path / "src" / header).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / header).touch()
    (tmp_path / "src/high/good.cc").write_text('#include "high/door.h"\n#include "low/door.h"\n')
    assert not violations(tmp_path)
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(line + "\n")
    [found] = violations(tmp_path)
    assert found.startswith(f"{file} -> ")
    assert why in found


# Importable without the compiled module: planners, docs and tools need no build.
PURE = ["enums", "errors", "models", "policy", "serde", "state", "storage", "strategy"]


def pure_modules() -> list[str]:
    package = ROOT / "kvcache"
    return ["kvcache"] + [
        f"kvcache.{name}"
        for name in PURE
        if (package / f"{name}.py").is_file() or (package / name).is_dir()
    ]


def test_pure_modules_import_without_the_compiled_core() -> None:
    modules = pure_modules()
    assert "kvcache.errors" in modules
    # None in sys.modules makes an import of that name fail.
    code = (
        "import sys, importlib; sys.modules['kvcache._core'] = None\n"
        f"for name in {modules}: importlib.import_module(name)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def imported(file: Path) -> set[str]:
    """Modules of this package that a file imports, anywhere in it, by their last name."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = f"{'.' * node.level}{node.module or ''}"
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return {name.rpartition(".")[2] for name in found if name.startswith((".", "kvcache"))}


def test_models_know_nothing_of_the_cache() -> None:
    files = sorted((ROOT / "kvcache" / "models").rglob("*.py"))
    wrong = {str(f): imported(f) & {"_core", "cache", "cli", "persist"} for f in files}
    assert not {name: found for name, found in wrong.items() if found}
