"""Hypothesis strategies for the public value types, made from their field annotations."""

from __future__ import annotations

import enum
import types
import typing
from dataclasses import fields
from typing import Any

from hypothesis import strategies as st

from kvcache.capability import StateMemoryLayout
from kvcache.enums import StateKind, VerifyRule
from kvcache.errors import KVCacheError
from kvcache.policy.attention import AttentionPolicy
from kvcache.policy.layer import LayerCachePolicy
from kvcache.policy.schedule import LayerSchedule
from kvcache.policy.tensors import Scalar, StateTensorDimension, StateTensorPolicy
from kvcache.serde import Variant
from kvcache.state import StateDecl


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values that a field annotated with ``hint`` may hold."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        meta = arguments[1]
        return st.integers(meta.ge, 2**64 - 1 if meta.le is None else meta.le)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*(values_of(argument) for argument in arguments))
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0]), max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*(values_of(argument) for argument in arguments))
    if origin is LayerSchedule:
        return schedules(values_of(LayerCachePolicy))
    simple = {
        int: st.integers(-(2**31), 2**31 - 1),
        bool: st.booleans(),
        str: st.text(max_size=8),
        type(None): st.none(),
    }
    return simple[hint] if hint in simple else instances(hint)


def instances(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Valid instances of a public type."""
    if issubclass(cls, enum.Enum):
        return st.sampled_from(cls)
    if cls is LayerSchedule:
        return schedules(values_of(AttentionPolicy)) | schedules(values_of(LayerCachePolicy))
    if issubclass(cls, Variant) and Variant in cls.__bases__:
        return st.deferred(lambda: st.one_of(*map(instances, cls.VARIANTS.values())))
    return SPECIAL.get(cls, built_by_fields)(cls)


def schedules(policies: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(policies, min_size=1, max_size=3).map(LayerSchedule)


def built_by_fields(cls: type[Any], **changed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls, include_extras=True)
    parts = {f.name: values_of(hints[f.name]) for f in fields(cls)} | changed

    def build(arguments: dict[str, Any]) -> Any:
        try:
            return cls(**arguments)
        except KVCacheError:  # a rule that spans fields
            return None

    return st.fixed_dictionaries(parts).map(build).filter(lambda value: value is not None)


def state_tensors(cls: type[Any]) -> st.SearchStrategy[Any]:
    axes = values_of(StateTensorDimension).filter(lambda axis: not isinstance(axis, Scalar))
    shapes = st.lists(axes, min_size=1, max_size=4).map(tuple) | st.just((Scalar(),))
    hints = typing.get_type_hints(cls, include_extras=True)
    parts = [shapes, *(values_of(hints[name]) for name in ("role", "dtype", "presence"))]

    def build(arguments: tuple[Any, ...]) -> Any:
        shape, role, dtype, presence = arguments
        return cls(role, shape, dtype, role.required_residency, presence)

    return st.tuples(*parts).map(build)


def memory_layouts(cls: type[Any]) -> st.SearchStrategy[Any]:
    def build(policies: list[Any], lag: int, sizes: tuple[int, int], completeness: Any) -> Any:
        lags = tuple(-(lag % (index + 2)) for index in range(len(policies)))
        return cls(LayerSchedule(policies), lags, *sizes, completeness)

    size = st.integers(1, 2**20)
    return st.builds(
        build,
        st.lists(values_of(LayerCachePolicy), min_size=1, max_size=3),
        st.integers(0, 9),
        st.tuples(size, size),
        values_of(typing.get_type_hints(cls, include_extras=True)["completeness"]),
    )


def declarations(cls: type[Any]) -> st.SearchStrategy[Any]:
    common = {
        "layer": st.integers(-1, 9),
        "shape": st.lists(st.integers(1, 64), min_size=1, max_size=3).map(tuple),
    }
    no_rule = {"verify": st.just(VerifyRule.NONE)}
    no_rows = {
        "row_scale_bytes": st.just(0),
        "window": st.just(0),
        "record_tokens": st.just(1),
        "chunked": st.just(False),
        "sinks": st.just(0),
    }
    every_position = {"window": st.just(0), "chunked": st.just(False), "sinks": st.just(0)}
    windows = {"window": st.integers(1, 64), "record_tokens": st.just(1)}
    sliding = {"chunked": st.just(False), "sinks": st.integers(0, 8)}
    chunked = {"chunked": st.just(True), "sinks": st.just(0)}
    paged = {
        "kind": st.just(StateKind.PAGED_KV),
        "row_scale_bytes": st.sampled_from([0, 4]),
    }
    records = {"record_tokens": st.integers(1, 4)}
    recurrent = {"kind": st.just(StateKind.RECURRENT)}
    cache = {"kind": st.sampled_from([kind for kind in StateKind if kind.is_cache])}
    return (
        built_by_fields(cls, **common, **no_rule, **paged, **every_position, **records)
        | built_by_fields(cls, **common, **no_rule, **paged, **windows, **sliding)
        | built_by_fields(cls, **common, **no_rule, **paged, **windows, **chunked)
        | built_by_fields(cls, **common, **no_rows, **recurrent)
        | built_by_fields(cls, **common, **no_rule, **no_rows, **cache)
    )


SPECIAL = {
    StateTensorPolicy: state_tensors,
    StateMemoryLayout: memory_layouts,
    StateDecl: declarations,
}
