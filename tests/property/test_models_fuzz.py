"""A damaged configuration gives a model or an error of this package, and never anything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.counting import position_scalars
from support.families import FAMILIES

from kvcache.errors import KVCacheError
from kvcache.models import Model, from_config

SIZES = st.one_of(
    st.integers(-3, 40),
    st.sampled_from([2**15, 2**31 - 1, 2**31, 2**63, 2**64, -(2**31), 10**400]),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    SIZES,
    st.sampled_from([1.5, 2.0, float("nan"), float("inf"), -0.0]),
    st.sampled_from(["", "4096", "auto", "full_attention", "\ud800", "M*E-", "LG"]),
)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=9),
    st.lists(st.lists(SCALARS, max_size=2), max_size=3),
    st.dictionaries(st.sampled_from(["0", "03", "x", "model_type", "factor"]), SCALARS, max_size=2),
)
# Names that families look for, so that fields appear where they were not.
NAMES = sorted(
    {name for family in FAMILIES.values() for name in family.config}
    | {"layer_types", "text_config", "per_layer_config", "quantization_config", "torch_dtype"}
    | {"rope_scaling", "rope_parameters", "original_max_position_embeddings"}
)


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    """A configuration of a family with up to four fields dropped, replaced or added."""
    family = draw(st.sampled_from(sorted(FAMILIES)))
    config: dict[str, Any] = dict(FAMILIES[family].config)
    for _ in range(draw(st.integers(1, 4))):
        inside = [name for name in config if isinstance(config[name], dict)]
        target = config
        if inside and draw(st.booleans()):
            name = draw(st.sampled_from(inside))
            target = config[name] = dict(config[name])
        names = st.sampled_from(sorted(target) or NAMES)
        name = draw(st.one_of(names, st.sampled_from(NAMES)))
        if draw(st.booleans()):
            target.pop(name, None)
        else:
            target[name] = draw(VALUES)
    return config


def read(config: Any, **options: Any) -> str:
    """Read and check a configuration; the error's text, or nothing."""
    try:
        model = from_config(config, **options)
    except KVCacheError as error:
        return str(error)
    check(model)
    return ""


def check(model: Model) -> None:
    """What holds for every model that was read."""
    assert len(model.schedule) >= 1
    assert model.hidden_size >= 1
    for layer in model.schedule:
        layer.validate()
        assert position_scalars(layer) >= 0


@given(damaged(), st.sampled_from([1, 2, 3, 8]))
def test_a_damaged_configuration_never_escapes_as_another_exception(
    config: dict[str, Any], tp: int
) -> None:
    error = read(config, tp=tp)
    assert "\n" not in error
    assert len(error) < 600


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_any_value_is_a_configuration_or_refused(value: Any) -> None:
    with pytest.raises(KVCacheError):
        from_config(value)


@given(st.sampled_from(sorted(FAMILIES)), st.data())
def test_a_damaged_file_is_refused_by_name(tmp_path_factory: Any, name: str, data: Any) -> None:
    text = json.dumps(FAMILIES[name].config).encode()
    at = data.draw(st.integers(0, len(text) - 1))
    byte = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "config.json"
    path.write_bytes(text[:at] + bytes([byte]) + text[at + 1 :])
    error = read(path)
    assert error.startswith(f"{path}: " if error else "")
