"""The C headers as data: what other languages have to declare."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass

from support.native import ROOT

FOLDER = ROOT / "cpp" / "include" / "kvcache"
# The headers that kvcache/c.h includes, in its order.
HEADERS = tuple(re.findall(r'#include "kvcache/(\w+)\.h"', (FOLDER / "c.h").read_text()))


@dataclass(frozen=True)
class Declarations:
    """Of one header, or of all; names to what is declared, in order."""

    constants: dict[str, int]
    enums: tuple[str, ...]
    handles: tuple[str, ...]
    structs: dict[str, tuple[str, ...]]  # fields, as "type name"
    functions: dict[str, tuple[str, tuple[str, ...]]]  # what it returns; parameters likewise


def declarations(*names: str) -> Declarations:
    """What the headers of these names declare."""
    text = "".join((FOLDER / f"{name}.h").read_text() for name in names)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)

    def split(body: str, separator: str) -> tuple[str, ...]:
        return tuple(" ".join(part.split()) for part in body.split(separator) if part.strip())

    return Declarations(
        constants={n: int(v) for n, v in re.findall(r"(KVCACHE_\w+) = (\d+)", text)},
        enums=tuple(re.findall(r"typedef enum (\w+)", text)),
        handles=tuple(re.findall(r"typedef struct (\w+) \1;", text)),
        structs={
            name: split(body, ";")
            for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\}", text, re.DOTALL)
        },
        functions={
            name: (result.strip(), () if arguments == "void" else split(arguments, ","))
            for result, name, arguments in re.findall(
                r"KVCACHE_API ([^;]*?)\b(kvcache_\w+)\(([^;]*)\);", text
            )
        },
    )


SCALARS: dict[str, type] = {
    "double": ctypes.c_double,
    "float": ctypes.c_float,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "ptrdiff_t": ctypes.c_ssize_t,
    "size_t": ctypes.c_size_t,
    "uint8_t": ctypes.c_uint8,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
}


class Library:
    """A shared library of the C face, its structs and its functions, as the headers say."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        found = declarations(*HEADERS)
        self.constants = found.constants
        self.types = {**SCALARS, **dict.fromkeys(found.enums, ctypes.c_int32)}
        for name, fields in found.structs.items():
            members = [(field.rsplit(maxsplit=1)[1], self.type_of(field)) for field in fields]
            self.types[name] = type(name, (ctypes.Structure,), {"_fields_": members})
        for name, (result, parameters) in found.functions.items():
            function = getattr(self.library, name)
            function.restype = None if result == "void" else self.type_of(result + " result")
            function.argtypes = [self.type_of(parameter) for parameter in parameters]
        self.structs = {name: self.types[name] for name in found.structs}

    def type_of(self, declared: str) -> type:
        """Of a field or a parameter, "type name": pointers but for texts have no type."""
        if "*" in declared:
            return ctypes.c_char_p if declared.startswith("const char*") else ctypes.c_void_p
        return self.types[declared.split()[0]]

    def make(self, name: str, **values: object) -> ctypes.Structure:
        """A struct of its size, all else 0."""
        struct = self.structs[name](**values)
        if hasattr(struct, "struct_size"):
            struct.struct_size = ctypes.sizeof(struct)
        return struct

    def call(self, name: str, *arguments: object) -> None:
        """A call that has to succeed."""
        status = self.status(name, *arguments)
        assert status == 0, f"{name}: {status}, {self.error()}"

    def status(self, name: str, *arguments: object) -> int:
        given = [
            ctypes.addressof(argument) if isinstance(argument, BY_ADDRESS) else argument
            for argument in arguments
        ]
        return int(getattr(self.library, name)(*given))

    def error(self) -> str:
        return str(self.library.kvcache_last_error().decode())


# What a call takes by its address: structs, arrays, numbers and handles to be filled.
BY_ADDRESS = (ctypes.Structure, ctypes.Array, ctypes._SimpleCData)
