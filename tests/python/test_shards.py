"""State split over tensor-parallel ranks and merged again, for each kind of family."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.ranks import CONFIGS, DELTA, DENSE

import kvcache
from kvcache import InvalidArgumentError, UnsupportedError
from kvcache.models import from_config
from kvcache.shards import reshard

TOKENS = 21


def open_ranks(
    stack: ExitStack, config: dict[str, Any], ranks: int, storage: str = "f16"
) -> list[kvcache.Sequence]:
    model = from_config(config, tp=ranks)
    plan = kvcache.StatePlan.for_model(model, memory="8MiB", block_tokens=4, format=storage)
    return [stack.enter_context(kvcache.Cache(plan).open(np.arange(TOKENS))) for _ in range(ranks)]


def fill(sequence: kvcache.Sequence) -> None:
    rng = np.random.default_rng(1)
    for layer in range(2):
        parts = sequence.plan.paged_components(layer)
        if parts:
            rows = [rng.standard_normal((TOKENS, p.heads, p.width)).astype("f") for p in parts]
            rows[0][3] *= 1e-7  # subnormal in float16
            rows[0][4] = 0
            sequence.write(layer, 0, *rows)
    for part in sequence.plan.fixed:
        sequence.state(part.layer, part.name)[...] = rng.standard_normal(part.shape)
    sequence.advance(TOKENS)


def contents(sequence: kvcache.Sequence) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    for layer in range(2):
        if sequence.plan.paged_components(layer):
            for i, rows in enumerate(sequence.read(layer, 0, sequence.length, "float32")):
                if rows is not None:
                    found[f"{layer}.{i}"] = rows
    for part in sequence.plan.fixed:
        found[f"{part.layer}.{part.name}"] = sequence.state(part.layer, part.name).copy()
    return found


def assert_equal(got: dict[str, NDArray[Any]], want: dict[str, NDArray[Any]]) -> None:
    assert got.keys() == want.keys()
    for name in want:
        np.testing.assert_array_equal(got[name], want[name], name)


@pytest.mark.parametrize("storage", ["f16", "int8"])
@pytest.mark.parametrize("family", list(CONFIGS))
def test_split_and_merged_it_is_the_same_bit_for_bit(family: str, storage: str) -> None:
    config = CONFIGS[family]
    model = from_config(config)
    with ExitStack() as stack:
        [full] = open_ranks(stack, config, 1, storage)
        fill(full)
        want = contents(full)
        sources = [full]
        for ranks in (2, 8, 4, 1):  # each from the one before
            targets = open_ranks(stack, config, ranks, storage)
            reshard(model, sources, targets)
            assert [target.length for target in targets] == [TOKENS] * ranks
            sources = targets
        assert_equal(contents(sources[0]), want)


def test_a_rank_holds_its_heads_and_its_part_of_each_stream() -> None:
    with ExitStack() as stack:
        [full] = open_ranks(stack, DELTA, 1)
        fill(full)
        ranks = open_ranks(stack, DELTA, 4)
        reshard(from_config(DELTA), [full], ranks)
        keys, values = full.read(1, 0, TOKENS)
        conv, matrix = (full.state(0, f"state.{n}") for n in ("convolution.0", "recurrent"))
        query, key, value = np.split(conv, [24, 48], axis=1)
        for rank, held in enumerate(ranks):
            head = slice(rank // 2, rank // 2 + 1)  # two heads on four ranks
            np.testing.assert_array_equal(held.read(1, 0, TOKENS)[0], keys[:, head])
            np.testing.assert_array_equal(held.read(1, 0, TOKENS)[1], values[:, head])
            streams = [part.reshape(3, 4, -1)[:, rank] for part in (query, key, value)]
            np.testing.assert_array_equal(
                held.state(0, "state.convolution.0"), np.concatenate(streams, axis=1)
            )
            np.testing.assert_array_equal(
                held.state(0, "state.recurrent"), matrix[rank * 4 : rank * 4 + 4]
            )


def test_what_is_there_already_is_left() -> None:
    config = CONFIGS["gqa"]
    with ExitStack() as stack:
        [full] = open_ranks(stack, config, 1)
        fill(full)
        ranks = open_ranks(stack, config, 2)
        reshard(from_config(config), [full], ranks)
        for rank in ranks[:1]:
            rank.truncate(10)
            rank.extend(np.arange(10, TOKENS))
        reshard(from_config(config), [full], ranks)
        again = open_ranks(stack, config, 1)
        reshard(from_config(config), ranks, again)
        assert_equal(contents(again[0]), contents(full))


def test_ranks_that_do_not_fit_are_refused_and_unchanged() -> None:
    config, model = CONFIGS["gqa"], from_config(CONFIGS["gqa"])
    with ExitStack() as stack:
        [full] = open_ranks(stack, config, 1)
        fill(full)
        ranks = open_ranks(stack, config, 4)
        wrong = [
            (lambda: reshard(model, [full], []), "expected one sequence for each rank"),
            (lambda: reshard(from_config(config, tp=2), [full], ranks), "got that of tp=2"),
            (lambda: reshard(model, [full], ranks[:2]), "[2, 8] is no share of [8, 8] over 2"),
            (lambda: reshard(model, [full], ranks[:3]), "[2, 8] is no share of [8, 8] over 3"),
            (lambda: reshard(model, ranks, [full]), "targets[0] is at 21, beyond the sources' 0"),
            (lambda: reshard(model, [full, ranks[0]], ranks[1:]), "sources[1] is at 0, sources[0]"),
            (
                lambda: reshard(from_config(DELTA), [full], ranks),
                "sources[0]: its plan is of another model",
            ),
        ]
        for call, why in wrong:
            with pytest.raises(InvalidArgumentError) as error:
                call()
            assert why in str(error.value)
        ranks[3].truncate(0)
        ranks[3].extend(np.arange(TOKENS) + 1)
        with pytest.raises(InvalidArgumentError, match=r"targets\[3\]: its first 21 tokens"):
            reshard(model, [full], ranks)
        assert {rank.length for rank in ranks} == {0}


def test_convolutions_of_unknown_streams_are_refused() -> None:
    config = {
        **DENSE,
        "model_type": "zaya",
        "num_key_value_heads": 2,
        "cca_time0": 2,
        "cca_time1": 2,
    }
    with ExitStack() as stack:
        [full] = open_ranks(stack, config, 1)
        fill(full)
        ranks = open_ranks(stack, config, 2)
        with pytest.raises(UnsupportedError, match="belong together"):
            reshard(from_config(config), [full], ranks)


def test_what_cannot_be_moved_is_refused_before_anything_moves() -> None:
    model = from_config(CONFIGS["gqa"])
    cache = kvcache.Cache(kvcache.StatePlan.for_model(model, memory="1MiB"))
    with cache.open([1, 2]) as one, cache.open([1, 2]) as other:
        for sources, targets in (([one], [other, other]), ([one, one], [other]), ([one], [one])):
            with pytest.raises(InvalidArgumentError, match="there twice"):
                reshard(model, sources, targets)
        like_a_model = SimpleNamespace(channel_parts=(), tp=1)
        for wrong in (None, like_a_model):
            with pytest.raises(InvalidArgumentError, match="model: expected what"):
                reshard(wrong, [one], [other])  # type: ignore[arg-type]
        like_a_sequence = SimpleNamespace(is_open=True)
        for sides in (([like_a_sequence], [one]), ([one], [like_a_sequence])):
            with pytest.raises(InvalidArgumentError, match=r"\[0\]: expected a Sequence"):
                reshard(model, *sides)
        with pytest.raises(InvalidArgumentError, match="sources: expected one sequence"):
            reshard(model, one, [other])  # type: ignore[arg-type]
    with cache.open([1, 2]) as fresh, pytest.raises(InvalidArgumentError, match="open sequence"):
        reshard(model, [one], [fresh])
