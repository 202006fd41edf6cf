"""The house rules that a machine can check: lengths, ASCII, words that do not belong."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.native import ROOT

COLUMNS, FILE_LINES, FUNCTION_LINES = 100, 600, 70
FOLDERS = [".ci", "benchmarks", "cpp", "docs", "examples", "kvcache", "tests"]
CPP, PYTHON = {".cc", ".cu", ".h", ".c"}, {".py", ".pyi"}
CODE = CPP | PYTHON | {".cmake", ".pyx", ".pxd", ".sh", ""}
PROSE = {".in", ".json", ".jsonl", ".md", ".toml", ".txt", ".yaml", ".yml"}
# In two halves, so that this file may be checked as well.
BANNED = {"TO" + "DO": None, "FIX" + "ME": None, "std::" + "cout": "cpp/src"}


def files() -> list[Path]:
    found = [path for path in ROOT.iterdir() if path.is_file() and path.name != "LICENSE"]
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    return sorted(path for path in found if path.suffix in CODE | PROSE)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def is_code(path: Path) -> bool:
    return path.suffix in CODE or path.name == "CMakeLists.txt"


def test_the_walk_sees_every_kind_of_file() -> None:
    names = {name_of(path) for path in files()}
    assert {"README.md", "CMakeLists.txt", "kvcache/errors.py", "cpp/src/base/check.h"} <= names


def test_sources_are_ascii() -> None:
    wrong = [name_of(path) for path in files() if not path.read_bytes().isascii()]
    assert not wrong


def test_lines_are_at_most_100_columns() -> None:
    wrong = [
        f"{name_of(path)}:{number}"
        for path in files()
        if is_code(path)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > COLUMNS
    ]
    assert not wrong


def test_files_are_at_most_600_lines() -> None:
    # A compiled module has one stub, however long.
    counts = {
        name_of(path): len(path.read_text().splitlines())
        for path in files()
        if path.suffix != ".pyi"
    }
    assert not {name: lines for name, lines in counts.items() if lines > FILE_LINES}


def test_banned_words_do_not_appear() -> None:
    wrong = [
        f"{name_of(path)}: {word}"
        for path in files()
        for word, folder in BANNED.items()
        if (folder is None or name_of(path).startswith(folder)) and word in path.read_text()
    ]
    assert not wrong


def python_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """(name, first line, last line), decorators left out."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.lineno, node.end_lineno


LITERAL = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
SCOPE = re.compile(
    r"(?:template\s*<.*>\s*)?(?:\w+\s+)?(?:namespace|class|struct|union|enum|extern)\b"
)


def cpp_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """(header, first line, last line) of each body that lies directly in namespaces and classes."""
    # Comments and literals may hold braces; only their line breaks are kept.
    text = LITERAL.sub(lambda match: "\n" * match[0].count("\n"), text)
    text = DIRECTIVE.sub(lambda match: "\n" * match[0].count("\n"), text)
    stack: list[tuple[str, str, int]] = []
    start = 0
    for match in re.finditer(r"[;{}]", text):
        header = text[start : match.start()]
        if header.count("(") > header.count(")"):
            continue  # inside a parameter list: a default argument
        start = match.end()
        if match[0] == "{":
            words = header.strip()
            first = text.count("\n", 0, match.start() - len(header.lstrip())) + 1
            outside = all(kind == "scope" for kind, _, _ in stack)
            if outside and SCOPE.match(words) and not words.endswith(")"):
                kind = "scope"
            else:
                kind = "function" if outside and "(" in words else "block"
            stack.append((kind, words, first))
        elif match[0] == "}" and stack:
            kind, words, first = stack.pop()
            if kind == "function":
                yield " ".join(words.split()), first, text.count("\n", 0, match.start()) + 1


def too_long(path: Path) -> list[str]:
    find = cpp_functions if path.suffix in CPP else python_functions
    return [
        f"{path}:{first}: {last - first + 1} lines in {header[:60]}"
        for header, first, last in find(path.read_text())
        if last - first + 1 > FUNCTION_LINES
    ]


def test_functions_are_at_most_70_lines() -> None:
    assert not [text for path in files() if path.suffix in CPP | PYTHON for text in too_long(path)]


@pytest.mark.parametrize(("lines", "found"), [(70, 0), (71, 1)])
def test_a_long_function_is_found(tmp_path: Path, lines: int, found: int) -> None:
    body = "  call();  // }\n" * (lines - 2)
    cpp = f"namespace a {{\nstruct B {{\n  int x = 0;\n}};\nvoid f(int a = {{}}) {{\n{body}}}\n}}\n"
    (tmp_path / "a.cc").write_text(cpp)
    assert len(too_long(tmp_path / "a.cc")) == found
    (tmp_path / "a.py").write_text("def f():\n" + "    pass\n" * (lines - 1))
    assert len(too_long(tmp_path / "a.py")) == found


ENVIRONMENT = re.compile(r'(?:getenv\(|environ\.get\(|environ\[)\s*"(\w+)"')


def test_readme_lists_every_variable_of_ours_that_code_reads() -> None:
    read = {
        name for path in files() if is_code(path) for name in ENVIRONMENT.findall(path.read_text())
    }
    ours = {name for name in read if name.startswith("KVCACHE_")}
    assert "KVCACHE_ISA" in ours
    assert not {name for name in ours if f"| `{name}` |" not in (ROOT / "README.md").read_text()}


def test_tools_have_one_version_in_pyproject_and_in_the_hooks() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = {pin for pin in project["optional-dependencies"]["dev"] if "==" in pin}
    hooks = set(re.findall(r"[\w-]+==[\d.]+", (ROOT / ".pre-commit-config.yaml").read_text()))
    assert pins & hooks
    versions = {pin.partition("==")[0]: pin for pin in pins}
    assert not {pin for pin in hooks if versions.get(pin.partition("==")[0], pin) != pin}
