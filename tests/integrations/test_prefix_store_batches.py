"""Rows of a batch are prompts of their own; padding, beams and samples of one prompt."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from support.tiny_transformers import prompt, tiny_model  # noqa: E402
from support.transformers_runs import answer, insert, next_turn, run, stored_answer  # noqa: E402

from kvcache.errors import InvalidArgumentError  # noqa: E402
from kvcache.integrations.transformers import PrefixStore  # noqa: E402

KINDS = ["llama", "gemma3_text", "qwen3_next", "mamba2", "falcon_h1", "nemotron_h"]


def store_of(model: Any, **options: Any) -> PrefixStore:
    return PrefixStore(model, **{"memory": "64MiB", **options})


def padded(lengths: list[int], seed: int) -> tuple[Any, Any]:
    """Prompts of these lengths, padded on the left, and their mask."""
    width = max(lengths)
    ids = torch.zeros((len(lengths), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, width - length :] = prompt(length, seed=seed + row)[0]
        mask[row, width - length :] = 1
    return ids, mask


@pytest.mark.parametrize("lengths", [[40, 40], [61, 40, 17], [30, 64]])
@pytest.mark.parametrize("name", KINDS)
def test_turns_of_a_batch_equal_plain_generation(name: str, lengths: list[int]) -> None:
    model = tiny_model(name)
    store = store_of(model)
    ids, mask = padded(lengths, seed=20)
    for turn in range(3):
        before = store.cache.stats().cached_tokens
        got = stored_answer(model, store, ids, attention_mask=mask)
        assert torch.equal(got, answer(model, ids, attention_mask=mask))
        if turn:
            assert store.cache.stats().cached_tokens > before
        ids = next_turn(got, seed=turn)
        mask = torch.cat([mask, torch.ones_like(ids[:, mask.shape[1] :])], dim=1)


@pytest.mark.parametrize("name", KINDS)
def test_rows_that_are_known_to_different_lengths_go_on_together(name: str) -> None:
    model = tiny_model(name)
    store = store_of(model)
    first, second = prompt(48, seed=1), prompt(48, seed=2)
    stored_answer(model, store, first[:, :40])
    stored_answer(model, store, second[:, :20])
    both = torch.cat([first, second])
    _, found = store.lookup(both)
    # Whether a row has a window or a snapshot at the place of the other's is chance.
    assert found == 20 if name == "llama" else found in (0, 20)
    assert torch.equal(stored_answer(model, store, both), answer(model, both))


def test_a_row_of_a_batch_is_found_by_a_prompt_alone() -> None:
    model = tiny_model("llama")
    store = store_of(model)
    ids, mask = padded([50, 33], seed=30)
    stored_answer(model, store, ids, attention_mask=mask)
    alone = ids[1:, 17:]
    _, found = store.lookup(alone)
    assert found == 32
    assert torch.equal(stored_answer(model, store, alone), answer(model, alone))


def test_rows_are_restored_as_they_were_stored_padding_apart() -> None:
    model = tiny_model("llama")
    store = store_of(model)
    ids, mask = padded([30, 21], seed=40)
    live, _ = store.lookup(ids, mask)
    with torch.no_grad():
        model(input_ids=ids, attention_mask=mask, cache=live)
    assert store.insert(ids, live, mask) == 30
    longer = torch.cat([ids, ids[:, :1]], dim=1)
    restored, found = store.lookup(longer, torch.cat([mask, mask[:, -1:]], dim=1))
    assert found == 30
    for layer, held in zip(live.layers, restored.layers, strict=True):
        assert torch.equal(layer.keys[0], held.keys[0])
        assert torch.equal(layer.values[1, :, 9:], held.values[1, :, 9:])
        assert not held.keys[1, :, :9].any()


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("options", [{"num_beams": 3}, {"num_beams": 4, "num_return_sequences": 2}])
def test_beams_equal_plain_beams(name: str, options: dict[str, int]) -> None:
    model = tiny_model(name)
    store = store_of(model)
    ids, mask = padded([40, 27], seed=50)
    for _ in range(2):
        got = stored_answer(model, store, ids, attention_mask=mask, **options)
        assert torch.equal(got, answer(model, ids, attention_mask=mask, **options))
    assert store.cache.stats().cached_tokens > 0
    # What the beams stored of the prompt serves plain generation.
    got = stored_answer(model, store, ids, attention_mask=mask)
    assert torch.equal(got, answer(model, ids, attention_mask=mask))


@pytest.mark.parametrize("name", KINDS)
def test_samples_of_one_prompt_equal_plain_sampling(name: str) -> None:
    model = tiny_model(name)
    store = store_of(model)
    ids = prompt(40, seed=60)
    options = {"do_sample": True, "num_return_sequences": 3}
    for seed in (0, 1):
        torch.manual_seed(seed)
        expected = answer(model, ids, **options)
        torch.manual_seed(seed)
        assert torch.equal(stored_answer(model, store, ids, **options), expected)


def test_a_row_that_ends_early_is_stored_to_its_end() -> None:
    model = tiny_model("llama")
    plain = answer(model, prompt(40, seed=61), max_new_tokens=12)
    end = int(plain[0, 44])
    ids = torch.cat([prompt(40, seed=61), prompt(40, seed=62)])
    store = store_of(model)
    got = stored_answer(model, store, ids, max_new_tokens=12, eos_token_id=end)
    assert torch.equal(got, answer(model, ids, max_new_tokens=12, eos_token_id=end))
    first_end = int((got[0, 40:] == end).nonzero()[0]) + 41
    assert first_end < got.shape[1]
    _, found = store.lookup(torch.cat([got[:1, :first_end], prompt(3)], dim=1))
    assert found == first_end
    _, found = store.lookup(torch.cat([got[:1], prompt(3)], dim=1))
    assert found == first_end  # and the filling behind it is not


def test_padding_on_the_right_is_refused() -> None:
    model = tiny_model("llama")
    store = store_of(model)
    ids = prompt(10).expand(2, -1)
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    with pytest.raises(InvalidArgumentError, match="must be on the left"):
        stored_answer(model, store, ids, attention_mask=mask)
    live, _ = store.lookup(ids)
    run(model, ids, live)
    with pytest.raises(InvalidArgumentError, match="must be on the left"):
        insert(store, ids, live, attention_mask=mask)
    mask[1] = 0
    with pytest.raises(InvalidArgumentError, match="padding alone"):
        store.lookup(ids, mask)
