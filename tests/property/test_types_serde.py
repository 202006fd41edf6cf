"""Every public type reads back what it writes, and refuses what is wrong with its own error."""

from __future__ import annotations

import contextlib
import copy
import functools
import pickle
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.values import instances

from kvcache.errors import KVCacheError
from kvcache.schema import json_schema, public_types
from kvcache.serde import Value

jsonschema = pytest.importorskip("jsonschema")

TYPES = public_types()
few = settings(max_examples=25)  # for each of the types
WRONG = [None, True, -1, 0, 2**31, 2**64, 10**30, 1.5, "", "x", [], {}, [[]], {"": 0}, b"", {1}]


@functools.cache
def validator(name: str) -> Any:
    return jsonschema.Draft202012Validator(json_schema(name))


def read(cls: type[Any], data: Any) -> Any:
    """The value, or None for a refusal; any other exception fails the test."""
    try:
        return cls.from_dict(data)
    except KVCacheError as error:
        message = str(error)
    assert message.startswith("$")
    assert "\n" not in message
    return None


@pytest.mark.parametrize("name", TYPES)
@few
@given(data=st.data())
def test_round_trip(name: str, data: st.DataObject) -> None:
    cls = TYPES[name]
    value = data.draw(instances(cls))
    assert cls.from_json(value.to_json()) == value
    assert cls.from_dict(value.to_dict(), forbid_unknown_keys=True) == value
    assert hash(cls.from_dict(value.to_dict())) == hash(value)
    assert pickle.loads(pickle.dumps(value)) == value
    validator(name).validate(value.to_dict())


@pytest.mark.parametrize("name", TYPES)
@few
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_mutated_json_gives_a_value_or_our_error(name: str, data: st.DataObject, seed: int) -> None:
    cls = TYPES[name]
    plain = data.draw(instances(cls)).to_dict()
    found = read(cls, mutated(copy.deepcopy(plain), random.Random(seed)))
    if found is not None:
        assert cls.from_dict(found.to_dict()) == found


def mutated(data: Any, rng: random.Random) -> Any:
    """``data`` with one item dropped, replaced or added."""
    if isinstance(data, dict) and data and rng.random() < 0.8:
        key = rng.choice(list(data))
        if rng.random() < 0.3:
            del data[key]
        else:
            data[key] = mutated(data[key], rng)
        return data
    if isinstance(data, list) and data and rng.random() < 0.8:
        index = rng.randrange(len(data))
        data[index] = mutated(data[index], rng)
        return data
    return rng.choice(WRONG)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@pytest.mark.parametrize("name", TYPES)
@few
@given(data=JSON, text=st.text(max_size=20))
def test_any_json_and_any_text_give_a_value_or_our_error(name: str, data: Any, text: str) -> None:
    cls = TYPES[name]
    read(cls, data)
    with contextlib.suppress(KVCacheError):
        cls.from_json(text)


@pytest.mark.parametrize("name", [n for n, t in TYPES.items() if issubclass(t, Value)])
@few
@given(data=st.data())
def test_order_is_total_and_agrees_with_equality(name: str, data: st.DataObject) -> None:
    pool = instances(TYPES[name])
    a, b, c = data.draw(pool), data.draw(pool), data.draw(pool)
    assert (a < b) + (a == b) + (b < a) == 1
    assert (a <= b) == (not b < a)
    assert (a >= b) == (b <= a)
    ordered = sorted([a, b, c])
    assert sorted([c, b, a]) == ordered
    assert ordered[0] <= ordered[1] <= ordered[2]
