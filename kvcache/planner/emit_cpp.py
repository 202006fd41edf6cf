"""A model's layout as a C++ header, so that a server needs no JSON and no Python at run time."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING

from kvcache.errors import InvalidArgumentError
from kvcache.plan import StatePlan

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvcache.hints import CostModel
    from kvcache.plan import Group
    from kvcache.state import StateDecl

__all__ = ["emit_cpp"]

_MOST_AXES = 4
_HEADER = """\
// The decoder state of {name} ({model_type}), attention rows as {format}.
// Written by `kvcache plan --emit cpp`; emit it anew instead of editing it.
//
//   auto plan = {space}::plan();
//   kvcache::CacheOptions options;
//   options.costs = {space}::kCosts;
//   auto cache = kvcache::Cache::create(*std::move(plan), options);
//
// Thread safety: constants and pure functions.
// clang-format off
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/request.h"
#include "kvcache/state_decl.h"
#include "kvcache/state_plan.h"
#include "kvcache/status.h"
#include "kvcache/types.h"

namespace {space} {{

// kvcache::StateDecl, whose comments say what the fields are.
struct Declaration {{
  std::string_view id;
  std::int32_t layer;
  std::string_view component;
  kvcache::StateKind kind;
  kvcache::Section section;
  kvcache::DType dtype;
  std::size_t axes;
  std::array<std::uint64_t, {axes}> shape;  // the first `axes` of them; paged state: [heads, width]
  std::uint32_t row_scale_bytes;
  std::uint32_t window;
  kvcache::VerifyRule verify;
  std::uint32_t record_tokens;
  bool chunked;
  std::uint32_t sinks;
  kvcache::Gate gate;
}};

// Layers that share a block table, in the order of Sequence::block_table().
struct Group {{
  std::uint32_t window;
  bool chunked;
  std::uint32_t sinks;
  std::uint32_t record_tokens;
  std::size_t components;
  std::uint64_t token_bytes;
  std::uint64_t page_bytes;
}};

inline constexpr std::string_view kModelType = {type_text};
inline constexpr std::string_view kFingerprint =
    "{fingerprint}";
inline constexpr std::uint32_t kBlockTokens = {block_tokens};
inline constexpr std::uint64_t kBlockBytes = {block_bytes};  // one block of every group
inline constexpr std::uint64_t kSlotBytes = {slot_bytes};  // fixed-size state of one sequence
inline constexpr std::uint32_t kSequences = {sequences};
inline constexpr std::uint64_t kSequenceTokens = {tokens};
// Most bytes that a sequence of kSequenceTokens takes from the budget, decoded one by one.
inline constexpr std::uint64_t kSequenceBytes = {sequence_bytes};
inline constexpr std::uint64_t kMemoryBytes = {memory};  // {memory_note}
// FLOPs of recomputing a position, for CacheOptions::costs.
inline constexpr kvcache::CostModel kCosts{{{flops}, {flops_context}}};

inline constexpr std::array<Declaration, {decl_count}> kDeclarations{{{{
{declarations}
}}}};

inline constexpr std::array<Group, {group_count}> kGroups{{{{
{groups}
}}}};
"""
_FOOTER = """
inline std::vector<kvcache::StateDecl> declarations() {{
  std::vector<kvcache::StateDecl> decls;
  decls.reserve(kDeclarations.size());
  for (const Declaration& from : kDeclarations) {{
    kvcache::StateDecl decl;
    decl.id = std::string(from.id);
    decl.layer = from.layer;
    decl.component = std::string(from.component);
    decl.kind = from.kind;
    decl.section = from.section;
    decl.dtype = from.dtype;
    decl.shape.assign(from.shape.data(), from.shape.data() + from.axes);
    decl.row_scale_bytes = from.row_scale_bytes;
    decl.window = from.window;
    decl.verify = from.verify;
    decl.record_tokens = from.record_tokens;
    decl.chunked = from.chunked;
    decl.sinks = from.sinks;
    decl.gate = from.gate;
    decls.push_back(std::move(decl));
  }}
  return decls;
}}

// What kvcache was asked to plan, to be changed and handed to plan().
inline kvcache::PlanOptions options() {{
  kvcache::PlanOptions wanted;
  wanted.memory_bytes = kMemoryBytes;
  wanted.block_tokens = kBlockTokens;
  wanted.sequences = kSequences;
  return wanted;
}}

// Errors of StatePlan::create(). kUnsupported: the library computes another layout than the one
// that wrote this header.
inline kvcache::Result<kvcache::StatePlan> plan(const kvcache::PlanOptions& wanted = options()) {{
  auto made = kvcache::StatePlan::create(declarations(), wanted);
  if (made && made->fingerprint() != kFingerprint) {{
    return kvcache::Status::unsupported("{space}: the library's fingerprint is ",
                                        made->fingerprint(), ", the header's is ", kFingerprint,
                                        "; emit the header anew");
  }}
  return made;
}}

}}  // namespace {space}
"""


def emit_cpp(
    declarations: Iterable[StateDecl],
    *,
    name: str,
    model_type: str,
    format: str,  # noqa: A002 - the field's word
    tokens: int,
    sequences: int = 1,
    prefix_snapshots: int = 0,
    memory_bytes: int | None = None,
    costs: CostModel | None = None,
) -> str:
    """A header with the layout as ``constexpr`` data and ``plan()``, which makes a `StatePlan`.

    It needs the public headers of the library and nothing else. Its namespace is ``name`` in
    lower case, other characters than letters and digits turned into underscores.

    Args:
        declarations: what the model keeps.
        name: of the model, for people and the namespace.
        model_type: see `kvcache.models.Model`.
        format: how attention state is stored, for people.
        tokens: positions that a sequence is planned for.
        sequences: sequences that may be open at once.
        prefix_snapshots: snapshots beside them, where no memory is said.
        memory_bytes: the budget; None for what ``sequences`` and ``prefix_snapshots`` take.
        costs: of recomputing; None for the same everywhere.

    Raises:
        InvalidArgumentError: a tensor of more than four axes, or sizes beyond 64 bits.
        UnsupportedError: state that the cache has no run-time home for, such as fp8 rows.
    """
    decls = tuple(declarations)
    plan = _plan(decls, sequences, memory_bytes, costs)
    sequence_bytes = plan.sequence_bytes(tokens)
    note = "--memory"
    if memory_bytes is None:
        memory_bytes = sequences * sequence_bytes + prefix_snapshots * plan.slot_bytes
        note = f"of {sequences} sequences, {prefix_snapshots} snapshots"
    if memory_bytes >= 1 << 64:
        raise InvalidArgumentError(
            f"memory: {memory_bytes} bytes do not fit 64 bits; lower --tokens or --batch"
        )
    space = _namespace(name)
    header = _HEADER.format(
        space=space,
        name=_comment(name),
        model_type=_comment(model_type),
        type_text=_text(model_type),
        format=_comment(format),
        axes=_MOST_AXES,
        fingerprint=plan.fingerprint,
        block_tokens=plan.block_tokens,
        block_bytes=plan.block_bytes,
        slot_bytes=plan.slot_bytes,
        sequences=sequences,
        tokens=tokens,
        sequence_bytes=f"{sequence_bytes}U",
        memory=f"{memory_bytes}U",
        memory_note=note,
        flops=_double(plan.costs.flops_per_token),
        flops_context=_double(plan.costs.flops_per_token_per_position),
        decl_count=len(decls),
        declarations=_declarations(decls),
        group_count=len(plan.groups),
        groups="\n".join(_group(group) for group in plan.groups),
    )
    return header + _FOOTER.format(space=space)


def _plan(
    decls: tuple[StateDecl, ...],
    sequences: int,
    memory_bytes: int | None,
    costs: CostModel | None,
) -> StatePlan:
    for decl in decls:
        if len(decl.shape) > _MOST_AXES:
            raise InvalidArgumentError(
                f"{decl.id}: a header holds up to {_MOST_AXES} axes, got {len(decl.shape)}"
            )
    return StatePlan(
        decls,
        memory=1 if memory_bytes is None else memory_bytes,
        block_tokens=math.lcm(16, *(decl.record_tokens for decl in decls)),
        sequences=sequences,
        costs=costs,
    )


def _namespace(name: str) -> str:
    """A valid, unreserved C++ identifier; a leading digit gets a letter before it."""
    words = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "model"
    return f"{words}_layout" if not words[0].isdigit() else f"m{words}_layout"


def _comment(text: str) -> str:
    """Text of a file that must not end its comment: printable ASCII on one line."""
    return re.sub(r"[^ -\[\]-~]", "_", text)


def _text(text: str) -> str:
    """A string literal; what JSON escapes, C++ does, after everything else became `_`."""
    return json.dumps(_comment(text))


def _double(value: float) -> str:
    return repr(float(value))


def _enum(kind: str, value: object) -> str:
    return f"kvcache::{kind}::k{''.join(word.capitalize() for word in str(value).split('_'))}"


def _declarations(decls: Sequence[StateDecl]) -> str:
    return "\n".join(_declaration(decl) for decl in decls)


def _declaration(decl: StateDecl) -> str:
    shape = ", ".join(str(size) for size in (*decl.shape, *[0] * (_MOST_AXES - len(decl.shape))))
    fields = (
        _text(decl.id),
        str(decl.layer),
        _text(decl.component),
        _enum("StateKind", decl.kind),
        _enum("Section", decl.section),
        _enum("DType", decl.dtype),
        str(len(decl.shape)),
        f"{{{{{shape}}}}}",
        str(decl.row_scale_bytes),
        str(decl.window),
        _enum("VerifyRule", decl.verify),
        str(decl.record_tokens),
        str(decl.chunked).lower(),
        str(decl.sinks),
        _enum("Gate", decl.gate),
    )
    lines = (fields[:3], fields[3:6], fields[6:10], fields[10:])
    return "    {" + ",\n     ".join(", ".join(line) for line in lines) + "},"


def _group(group: Group) -> str:
    fields = (
        group.window,
        str(group.chunked).lower(),
        group.sinks,
        group.record_tokens,
        len(group.components),
        group.token_bytes,
        group.page_bytes,
    )
    return "    {" + ", ".join(str(field) for field in fields) + "},"
