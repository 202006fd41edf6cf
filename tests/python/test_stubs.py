"""kvcache/_core.pyi says what the compiled module is: names, parameters, enum values."""

from __future__ import annotations

import ast
import enum
import importlib.util
import re
import sys
from collections.abc import Iterator

import pytest
from support.native import ROOT, run

from kvcache import _core

STUB = ast.parse((ROOT / "kvcache" / "_core.pyi").read_text())
# What mypy.stubtest reports about every pybind11 module, matched by message and not by name, so
# that nothing else about the same class is hidden.
PYBIND11_ARTEFACTS = re.compile(
    r"\.__pybind11_native_enum__ is not present in stub$"
    r"|is inconsistent, metaclass differs$"
    r'|\.__init__ is inconsistent, stub does not have \*args parameter "args"$'
)


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_stubtest_finds_no_difference() -> None:
    config = ["--mypy-config-file", ROOT / "pyproject.toml"]
    done = run(sys.executable, "-P", "-m", "mypy.stubtest", "kvcache._core", "--concise", *config)
    lines = [line for line in done.stdout.splitlines() if line]
    unexpected = [line for line in lines if not PYBIND11_ARTEFACTS.search(line)]
    assert not unexpected, "\n".join(unexpected)
    assert len(lines) > 0, "stubtest printed nothing, not even the known artefacts"


def stub_classes() -> dict[str, ast.ClassDef]:
    return {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}


def test_every_enum_has_the_values_of_the_stub() -> None:
    bound = {
        name: {member.name: int(member.value) for member in value}
        for name, value in vars(_core).items()
        if isinstance(value, enum.EnumMeta)
    }
    written = {
        name: {
            target.id: ast.literal_eval(line.value)
            for line in node.body
            if isinstance(line, ast.Assign)
            for target in line.targets
            if isinstance(target, ast.Name)
        }
        for name, node in stub_classes().items()
        if any("Enum" in ast.unparse(base) for base in node.bases)
    }
    assert bound, "no enum is bound"
    assert written == bound


def parameters(function: ast.FunctionDef) -> list[tuple[str, str, bool]]:
    """(name, kind, has a default) of each parameter but self."""
    args = function.args
    positional = [*args.posonlyargs, *args.args]
    kinds = ["positional"] * len(args.posonlyargs) + ["named"] * len(args.args)
    required = len(positional) - len(args.defaults)
    found = [
        (arg.arg, kind, index >= required)
        for index, (arg, kind) in enumerate(zip(positional, kinds, strict=True))
    ]
    found += [
        (arg.arg, "keyword", default is not None)
        for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    # pybind11 numbers the arguments that were bound without a name; nobody can pass those by name.
    return [
        ("_", "positional", has_default)
        if kind == "positional" or re.fullmatch(r"arg\d+", name)
        else (name, kind, has_default)
        for name, kind, has_default in found
        if name != "self"
    ]


def stub_functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in STUB.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and not item.decorator_list:
                    yield f"{node.name}.{item.name}", item


def bound_signature(qualified: str) -> ast.FunctionDef | None:
    """What pybind11 wrote into the docstring; None for overloads, which it numbers."""
    value: object = _core
    for part in qualified.split("."):
        value = getattr(value, part)
    first = (value.__doc__ or "").partition("\n")[0]
    name = qualified.rpartition(".")[2]
    if not first.startswith(f"{name}(") or "*args, **kwargs" in first:
        return None
    # Defaults that are objects print as <...>, which is no expression.
    readable = re.sub(r"= ?<[^>]*>", "= ...", first)
    [node] = ast.parse(f"def {readable}: ...").body
    assert isinstance(node, ast.FunctionDef)
    return node


@pytest.mark.parametrize(("qualified", "stub"), [*stub_functions()])
def test_parameters_have_the_names_and_kinds_that_are_bound(
    qualified: str, stub: ast.FunctionDef
) -> None:
    bound = bound_signature(qualified)
    if bound is not None:
        assert parameters(stub) == parameters(bound)
