"""The C face from a language that knows the ABI alone: ctypes, and a shared library of it."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.c_headers import HEADERS, Library, declarations
from support.native import CMAKE_CONFIG, ROOT, missing_toolchain, must, package_folder

COMPILER = os.environ.get("CXX") or shutil.which("g++") or "c++"
LIBRARY = "lib/libkvcache.a"
C99 = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]
KEYS, STATE = 0, 1  # layers
HEADS, WIDTH, STATE_ELEMENTS = 2, 8, 6
TOKENS = list(range(100, 111))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """libkvcache.a as a shared library, which lacks nothing."""
    if reason := missing_toolchain():
        pytest.skip(reason)
    path = tmp_path_factory.mktemp("shared") / "libkvcache_c.so"
    archive = package_folder(CMAKE_CONFIG) / LIBRARY
    whole = ["-Wl,--whole-archive", archive, "-Wl,--no-whole-archive", "-Wl,-z,defs"]
    must(COMPILER, "-shared", "-pthread", "-o", path, *whole)
    return path


@pytest.fixture(scope="module")
def library(shared: Path) -> Library:
    return Library(str(shared))


def test_the_library_needs_nothing_but_the_runtime_of_cpp(shared: Path) -> None:
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("readelf is not installed (Debian: binutils)")
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", must(readelf, "-d", shared))
    runtime = r"lib(stdc\+\+|c\+\+|c\+\+abi|gcc_s|m|c|pthread)\.so\..*|ld-linux.*"
    assert needed
    assert not [name for name in needed if not re.fullmatch(runtime, name)]


def test_the_headers_functions_are_its_only_symbols(shared: Path) -> None:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm is not installed (Debian: binutils)")
    lines = must(nm, "--dynamic", "--defined-only", "--demangle", shared).splitlines()
    visible = {line.split(maxsplit=2)[2] for line in lines}
    # Instances of the standard library's templates are visible in every C++ library.
    ours = {name for name in visible if "kvcache" in name and "std::" not in name}
    assert ours == set(declarations(*HEADERS).functions)


def test_structs_are_as_large_as_in_c(library: Library, tmp_path: Path) -> None:
    source, program = tmp_path / "sizes.c", tmp_path / "sizes"
    prints = "".join(
        f'  printf("{name} %u\\n", (unsigned)sizeof({name}));\n' for name in library.structs
    )
    source.write_text(
        f"#include <kvcache/c.h>\n#include <stdio.h>\nint main(void) {{\n{prints}  return 0;\n}}\n"
    )
    include = package_folder(CMAKE_CONFIG) / "include"
    must("cc", *C99, "-I", include, "-o", program, source)
    sizes = dict(line.split() for line in must(program).splitlines())
    assert sizes == {name: str(ctypes.sizeof(type_)) for name, type_ in library.structs.items()}


@pytest.mark.parametrize("language", ["c99", "c++11", "c++20"])
def test_the_header_compiles_alone_without_a_warning(language: str, tmp_path: Path) -> None:
    if reason := missing_toolchain():
        pytest.skip(reason)
    compiler = "cc" if language == "c99" else COMPILER
    kind = "c" if language == "c99" else "c++"
    for name in ("c", *HEADERS):
        source = tmp_path / f"{name}.{kind}"
        source.write_text(f"#include <kvcache/{name}.h>\n#include <kvcache/{name}.h>\n")
        flags = [f"-std={language}", *C99[1:], "-I", ROOT / "cpp/include", "-x", kind]
        must(compiler, *flags, "-c", source, "-o", tmp_path / "object.o")


def test_the_example_of_the_page_prints_what_it_says(tmp_path: Path) -> None:
    if reason := missing_toolchain():
        pytest.skip(reason)
    page = (ROOT / "docs/servers.md").read_text()
    [(source, printed)] = re.findall(
        r"^```c\n(.*?)^```\n\nIt prints:\n\n```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL
    )
    package = package_folder(CMAKE_CONFIG)
    (tmp_path / "page.c").write_text(source)
    compiled = ["-I", package / "include", "-c", tmp_path / "page.c", "-o", tmp_path / "page.o"]
    must("cc", *C99, *compiled)
    linked = [tmp_path / "page.o", package / LIBRARY]
    must(COMPILER, "-pthread", "-o", tmp_path / "page", *linked)
    assert must(tmp_path / "page") == printed


def test_every_call_is_swept_for_wrong_arguments() -> None:
    sweep = (ROOT / "tests/cpp/c_arguments_test.cc").read_text()
    found = set(re.findall(r"\b(kvcache_\w+)\b", sweep))
    functions = declarations(*HEADERS).functions
    assert len(functions) > 170
    assert not set(functions) - found - {"kvcache_last_error"}
    swept = set(re.findall(r"SWEEP\((kvcache_\w+)", sweep))
    assert swept == {name for name, (result, _) in functions.items() if result == "kvcache_status"}


def make_cache(library: Library) -> ctypes.c_void_p:
    kv, state = (ctypes.c_uint64 * 2)(HEADS, WIDTH), (ctypes.c_uint64 * 1)(STATE_ELEMENTS)
    of = library.constants
    rows = {"kind": of["KVCACHE_PAGED_KV"], "dtype": of["KVCACHE_F16"], "shape_axes": 2}
    rows["shape"] = ctypes.addressof(kv)
    fixed = {"layer": STATE, "kind": of["KVCACHE_RECURRENT"], "dtype": of["KVCACHE_F32"]}
    fixed |= {"shape": ctypes.addressof(state), "shape_axes": 1}
    made = [
        library.make("kvcache_state_decl", id=b"k", component=b"attention.keys", **rows),
        library.make("kvcache_state_decl", id=b"v", component=b"attention.values", **rows),
        library.make("kvcache_state_decl", id=b"h", component=b"state.recurrent", **fixed),
    ]
    decls = (library.structs["kvcache_state_decl"] * 3)(*made)
    options = library.make(
        "kvcache_options", memory_bytes=1 << 20, block_tokens=4, event_capacity=99
    )
    cache = ctypes.c_void_p()
    library.call("kvcache_cache_create", decls, 3, options, cache)
    return cache


def components(library: Library, rows: np.ndarray) -> ctypes.Array[ctypes.Structure]:
    """[2, tokens, heads, width] of float32 as keys and values."""
    views = [
        library.make(
            "kvcache_rows",
            data=part.ctypes.data,
            dtype=library.constants["KVCACHE_F32"],
            tokens=part.shape[0],
            heads=HEADS,
            width=WIDTH,
            token_stride=part.strides[0],
            head_stride=part.strides[1],
        )
        for part in rows
    ]
    return (library.structs["kvcache_rows"] * 2)(*views)


def rows_of(tokens: list[int]) -> np.ndarray:
    one = np.array(tokens, np.float32)[None, :, None, None]
    return np.broadcast_to(one, (2, len(tokens), HEADS, WIDTH)).copy()


def state_of(library: Library, call: str, *arguments: object) -> np.ndarray:
    data, size = ctypes.c_void_p(), ctypes.c_uint64()
    library.call(call, *arguments, STATE, b"state.recurrent", data, size)
    assert data.value is not None
    return np.frombuffer((ctypes.c_char * size.value).from_address(data.value), np.float32)


def tokens_of(tokens: list[int]) -> ctypes.Array[ctypes.c_int32]:
    return (ctypes.c_int32 * len(tokens))(*tokens)


def test_a_prompt_is_verified_saved_and_loaded(library: Library, tmp_path: Path) -> None:
    cache, sequence, verify = make_cache(library), ctypes.c_void_p(), ctypes.c_void_p()
    count, length = len(TOKENS), ctypes.c_uint64()
    tokens, path = tokens_of(TOKENS), str(tmp_path / "prompt").encode()
    library.call("kvcache_sequence_open", cache.value, tokens, count, None, None, sequence)
    rows = components(library, written := rows_of(TOKENS[:-1]))
    library.call("kvcache_sequence_write", sequence.value, KEYS, 0, rows, 2)
    state_of(library, "kvcache_sequence_state", sequence.value)[:] = TOKENS[-2]
    library.call("kvcache_sequence_advance", sequence.value, count - 1)

    drafts = tokens_of([1, 2])
    library.call("kvcache_sequence_begin_verify", sequence.value, drafts, 2, None, verify)
    for row, token in enumerate([TOKENS[-1], 1, 2]):
        state_of(library, "kvcache_verify_state", verify.value, row)[:] = token
    rows = components(library, verified := rows_of([TOKENS[-1], 1, 2]))
    library.call("kvcache_verify_write", verify.value, KEYS, rows, 2)
    library.call("kvcache_verify_commit", verify.value, 2, length)
    assert length.value == count + 1
    library.library.kvcache_verify_destroy(verify)
    library.call("kvcache_sequence_snapshot", sequence.value, 0)
    library.call("kvcache_sequence_publish", sequence.value)
    library.library.kvcache_sequence_destroy(sequence)
    prompt = tokens_of([*TOKENS, 1, 3])
    asked = (prompt, len(prompt), None)
    library.call("kvcache_cache_save", cache.value, path, *asked, None, length)
    assert length.value == count + 1
    library.library.kvcache_cache_destroy(cache)

    cache, why = make_cache(library), library.make("kvcache_explanation")
    library.call("kvcache_cache_load", cache.value, path, None, None, length)
    library.call("kvcache_cache_explain", cache.value, *asked, why)
    assert (why.cached_tokens, why.tokens) == (count + 1, count + 2)
    library.call("kvcache_sequence_open", cache.value, *asked, None, sequence)
    assert library.library.kvcache_sequence_cached_tokens(sequence) == count + 1
    assert (state_of(library, "kvcache_sequence_state", sequence.value) == 1).all()
    rows = components(library, read := np.empty((2, count + 1, HEADS, WIDTH), np.float32))
    library.call("kvcache_sequence_read", sequence.value, KEYS, 0, rows, 2)
    assert (read == np.concatenate([written, verified[:, :2]], axis=1)).all()
    library.library.kvcache_sequence_destroy(sequence)
    library.library.kvcache_cache_destroy(cache)


def test_quotas_pins_events_and_errors(library: Library) -> None:
    cache, sequence, listed = make_cache(library), ctypes.c_void_p(), ctypes.c_void_p()
    asked = (tokens_of(TOKENS), len(TOKENS), None)
    hints = library.make("kvcache_open_options", tenant=b"acme")
    library.call("kvcache_sequence_open", cache.value, *asked, hints, sequence)
    rows = components(library, rows_of(TOKENS))
    library.call("kvcache_sequence_write", sequence.value, KEYS, 0, rows, 2)
    library.call("kvcache_sequence_advance", sequence.value, len(TOKENS) - 1)
    library.call("kvcache_sequence_snapshot", sequence.value, 0)
    library.call("kvcache_sequence_publish", sequence.value)
    library.library.kvcache_sequence_destroy(sequence)
    library.call("kvcache_cache_tenants", cache.value, listed)
    usage = library.make("kvcache_tenant_usage")
    library.call("kvcache_tenants_read", listed.value, 0, usage)
    assert usage.name == b"acme"
    assert usage.bytes > 0
    library.library.kvcache_tenants_destroy(listed)
    library.call("kvcache_cache_take_events", cache.value, listed)
    assert library.library.kvcache_events_count(listed) == 2
    library.library.kvcache_events_destroy(listed)
    pin, state = ctypes.c_void_p(), library.make("kvcache_pin_state")
    library.call("kvcache_cache_pin", cache.value, *asked, None, pin)
    library.call("kvcache_pin_read", pin.value, state)
    assert (state.tokens, state.is_held) == (len(TOKENS) - 1, 1)
    library.library.kvcache_pin_destroy(pin)
    blocks, filter_ = ctypes.c_uint64(), library.make("kvcache_erase_filter", tenant=b"acme")
    library.call("kvcache_cache_erase", cache.value, filter_, blocks)
    assert blocks.value == 3
    assert library.status("kvcache_cache_flush_disk", cache.value, None) == 5
    assert "disk" in library.error()
    library.library.kvcache_cache_destroy(cache)


def test_rows_of_an_engine_are_seen_in_their_pages(library: Library) -> None:
    cache, sequence, views = make_cache(library), ctypes.c_void_p(), ctypes.c_void_p()
    asked = (tokens_of(TOKENS), len(TOKENS), None)
    library.call("kvcache_sequence_open", cache.value, *asked, None, sequence)
    rows = np.arange(2 * len(TOKENS) * HEADS * WIDTH, dtype=np.float32)
    rows = rows.reshape(2, len(TOKENS), HEADS, WIDTH)
    shape = (ctypes.c_uint64 * 4)(*rows.shape)
    tensor = library.make(
        "kvcache_engine_tensor",
        data=rows.ctypes.data,
        dtype=library.constants["KVCACHE_F32"],
        layout=b"kv tokens heads dim",
        shape=ctypes.addressof(shape),
        axes=4,
    )
    layers, stop = (ctypes.c_int32 * 1)(KEYS), len(TOKENS)
    moved = (layers, 1, 0, stop, tensor, 1, None)
    library.call("kvcache_sequence_import_rows", sequence.value, *moved)
    library.call("kvcache_sequence_advance", sequence.value, stop)
    expected = rows.copy()
    rows[:] = 0
    library.call("kvcache_sequence_export_rows", sequence.value, *moved)
    assert (rows == expected).all()

    library.call("kvcache_sequence_views", sequence.value, KEYS, 0, stop, views)
    library.library.kvcache_sequence_destroy(sequence)
    library.library.kvcache_cache_destroy(cache)
    count = library.library.kvcache_page_views_count(views)
    assert count == 6
    for index in range(count):
        view = library.make("kvcache_page_view")
        library.call("kvcache_page_views_read", views.value, index, view)
        positions = slice(view.start, view.start + view.positions)
        size = view.positions * view.token_stride
        page = np.frombuffer((ctypes.c_char * size).from_address(view.rows), np.float16)
        assert (page == expected[view.component, positions].ravel()).all()
    library.library.kvcache_page_views_destroy(views)


def test_blocks_hidden_rows_and_drafts(library: Library) -> None:
    pool, pin, data = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    options = library.make("kvcache_pool_options", blocks=4, block_bytes=64)
    library.call("kvcache_pool_create", options, pool)
    ids = tokens_of([0, 0])
    library.call("kvcache_pool_allocate", pool.value, ids, 2)
    assert list(ids) == [0, 1]
    library.call("kvcache_pool_pin", pool.value, 1, pin, data)
    library.call("kvcache_pool_free", pool.value, ids, 2)
    stats = library.make("kvcache_block_stats")
    library.call("kvcache_pool_stats", pool.value, stats)
    assert (stats.live_blocks, stats.free_blocks) == (1, 3)
    library.library.kvcache_pool_destroy(pool)
    library.library.kvcache_block_pin_destroy(pin)

    cache, sequence, stash = make_cache(library), ctypes.c_void_p(), ctypes.c_void_p()
    asked = (tokens_of(TOKENS), len(TOKENS), None)
    library.call("kvcache_sequence_open", cache.value, *asked, None, sequence)
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    f32 = ctypes.c_int32(library.constants["KVCACHE_F32"])
    options = library.make("kvcache_hidden_options", rows=1, width=2, cache=cache.value)
    options.dtype = ctypes.addressof(f32)
    library.call("kvcache_accept_stash_create", options, 0, stash)
    hidden = library.make(
        "kvcache_hidden_rows", data=rows.ctypes.data, rows=3, width=2, row_stride=8
    )
    members, second = (ctypes.c_void_p * 1)(sequence.value), (ctypes.c_uint64 * 1)(1)
    stored = (members, 1, hidden, second, None, 0, None)
    library.call("kvcache_accept_stash_store", stash.value, *stored)
    out = library.make("kvcache_hidden_rows")
    library.call("kvcache_accept_stash_rows", stash.value, 1, out)
    assert list((ctypes.c_float * 2).from_address(out.data)) == [2, 3]
    library.library.kvcache_sequence_destroy(sequence)
    assert library.status("kvcache_accept_stash_rows", stash.value, 1, out) == 1
    assert "closed" in library.error()
    library.library.kvcache_accept_stash_destroy(stash)
    library.library.kvcache_cache_destroy(cache)

    lookup, found, drafts = ctypes.c_void_p(), ctypes.c_size_t(), tokens_of([0] * 4)
    library.call("kvcache_lookup_create", None, lookup)
    history = tokens_of([1, 2, 3, 4, 1, 2])
    library.call("kvcache_lookup_propose", lookup.value, history, 6, None, drafts, 4, found)
    assert list(drafts[: found.value]) == [3, 4]  # the first window
    library.library.kvcache_lookup_destroy(lookup)
