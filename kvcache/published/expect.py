"""What a caller and a plan expect of a published prompt cache, compared with its manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from kvcache._arguments import as_count, as_text
from kvcache.enums import DType, StateKind
from kvcache.errors import InvalidArgumentError, UnsupportedError
from kvcache.policy.schedule import LayerSchedule
from kvcache.published.manifest import Manifest, prefix_sha256
from kvcache.state import StateDecl, declare

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

    from kvcache.plan import StatePlan

Axis = tuple[int, int]


class Expected(TypedDict, total=False):
    """What a caller knows of a prompt cache. What is given is compared, None is as if not given.

    State of other weights is wrong without any sign of it, so give ``checkpoint_fingerprint``.
    """

    model_family: str | None  #: name of the family
    effective_model_type: str | None  #: type of the decoder
    checkpoint_fingerprint: str | None  #: the weights, in the words of who wrote it
    prefix_content_fingerprint: str | None  #: content of the prefix, such as that of its images
    architecture_fingerprint: str | None  #: see `architecture_fingerprint`
    sink_tokens: int | None  #: first positions that are protected
    stage: Axis | None  #: ``(world size, rank)`` of the pipeline, needed where there is one
    shard: Axis | None  #: likewise of the tensor-parallel ranks
    addressable: Axis | None  #: likewise of expert-parallel ranks whose state is not alike


def check_expected(manifest: Manifest, expected: Expected) -> None:
    """Compare what the caller knows, in the order of the published line.

    Raises:
        UnsupportedError: they differ, or the prompt cache is of one rank of several and the caller
            has not said which. InvalidArgumentError: an expectation that is none.
    """
    given = {name: value for name, value in expected.items() if value is not None}
    unknown = expected.keys() - Expected.__annotations__.keys()
    if unknown:
        raise InvalidArgumentError(f"unknown arguments {', '.join(sorted(unknown))}")
    axes = {
        name: as_axis(given.pop(name, None), name) for name in ("stage", "shard", "addressable")
    }
    for name in Expected.__annotations__:
        if name not in given:
            continue
        number = name == "sink_tokens"
        value = as_count(given[name], name) if number else as_text(given[name], name)
        found = getattr(manifest.fields, name)
        if found != value:
            raise UnsupportedError(f"{name}: expected {value!r}, the prompt cache has {found!r}")
    for name, axis in axes.items():
        _check_axis(manifest, name, axis)


def as_axis(axis: Any, name: str) -> Axis | None:
    """A ``(world size, rank)`` of an axis that is divided."""
    if axis is None:
        return None
    if not isinstance(axis, tuple | list) or len(axis) != 2:
        raise InvalidArgumentError(f"{name}: expected (world size, rank), got {axis!r}")
    size = as_count(axis[0], f"{name}[0]", least=1)
    return size, as_count(axis[1], f"{name}[1]", most=size - 1)


def _check_axis(manifest: Manifest, name: str, expected: Axis | None) -> None:
    topology = manifest.fields.topology
    pair = getattr(topology, name) or (1, 0)
    if expected is None and name == "addressable" and topology.addressable_state_replicated:
        return
    if pair != (expected or (1, 0)):
        wanted = "one rank; name it" if expected is None else f"{expected[1]} of {expected[0]}"
        raise UnsupportedError(
            f"{name}: the prompt cache is of rank {pair[1]} of {pair[0]}, expected {wanted}"
        )


def check_tokens(manifest: Manifest, tokens: NDArray[np.int32]) -> None:
    """Compare the tokens with their number and hash.

    Raises:
        InvalidArgumentError: they are others.
    """
    total = manifest.fields.total_prefix_tokens
    if len(tokens) != total:
        raise InvalidArgumentError(f"tokens: the prompt cache is of {total}, got {len(tokens)}")
    if prefix_sha256(tokens) != manifest.fields.prefix_sha256:
        raise InvalidArgumentError("tokens: they are not those of the prompt cache (SHA-256)")


def row_of(batch: int, row: int | None) -> int:
    """Which row of a batch is meant.

    Raises:
        UnsupportedError: there are several, and none was named. InvalidArgumentError: there is no
            such row.
    """
    if row is None and batch > 1:
        raise UnsupportedError(
            f"the prompt cache holds a batch of {batch}; name one with row=0..{batch - 1}"
        )
    return as_count(0 if row is None else row, "row", most=batch - 1)


def stored_layers(manifest: Manifest, segment: str | None) -> range:
    """Numbers of the stored layers of a segment; of all of them for None.

    Raises:
        InvalidArgumentError: there is no such segment.
    """
    if segment is None:
        return range(len(manifest.layers))
    name = as_text(segment, "segment")
    for each in manifest.fields.state_segments:
        if each.id == name:
            return range(each.layers.start, each.layers.end)
    raise InvalidArgumentError(f"segment: expected one of {manifest.segments}, got {name!r}")


def match_layers(manifest: Manifest, stored: range, plan: StatePlan) -> dict[int, int]:
    """By layer of the plan the number of the stored one that holds the same state.

    Layers are those of the whole model, or counted from the first that was asked for.

    Raises:
        UnsupportedError: the plan keeps other state.
    """
    policies: LayerSchedule[Any] = LayerSchedule([manifest.layout[number] for number in stored])
    declared = declare(policies)
    wanted = _kinds(plan.declarations, 0)
    differences = []
    for first in (manifest.layers[stored.start], 0):
        found = _kinds(declared, first)
        if found == wanted:
            return {first + index: number for index, number in enumerate(stored)}
        differences.append(_difference(found, wanted))
    raise UnsupportedError(f"another model: {differences[0]}")


Kinds = dict[tuple[int, str], dict[str, Any]]


def _kinds(declarations: Iterable[StateDecl], first: int) -> Kinds:
    """What must agree, by layer and component; the element is another question."""
    integers = {DType.I32, DType.U32}
    return {
        (decl.layer + first, decl.component): {
            "paged": decl.kind is StateKind.PAGED_KV,
            "shape": list(decl.shape),
            "window": decl.window,
            "chunked": decl.chunked,
            "record_tokens": decl.record_tokens,
            "element": decl.dtype.value if decl.dtype in integers else "floating",
        }
        for decl in declarations
    }


def _difference(found: Kinds, wanted: Kinds) -> str:
    """The first one, for people."""
    for layer, component in sorted(found.keys() | wanted.keys()):
        have, want = found.get((layer, component)), wanted.get((layer, component))
        name = f"layer {layer}, {component}"
        if have is None:
            return f"{name} is in the plan, not in the prompt cache"
        if want is None:
            return f"{name} is in the prompt cache, not in the plan"
        for key, value in have.items():
            if value != want[key]:
                return f"{name}: {key} {value} in the prompt cache, {want[key]} in the plan"
    return "layers have other numbers"
