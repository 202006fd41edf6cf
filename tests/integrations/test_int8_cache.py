"""`Int8Cache` in the place of a quantised cache of transformers."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from support.int8_oracle import decode, encode  # noqa: E402
from support.tiny_transformers import prompt, tiny_config, tiny_model  # noqa: E402
from support.transformers_runs import answer, go_on, run  # noqa: E402

from kvcache.errors import InvalidArgumentError, OutOfCapacityError, UnsupportedError  # noqa: E402
from kvcache.integrations.transformers import Int8Cache  # noqa: E402

KINDS = ["llama", "gemma3_text", "qwen3_next", "gemma3n_text", "deepseek_v3"]


class _Rounded(transformers.DynamicCache):
    """The obvious way: every row is quantised and back once its forward pass is over."""

    def round(self, first: int) -> None:
        for layer in self.layers:
            if type(layer) is transformers.cache_utils.DynamicLayer and layer.is_initialized:
                for rows in (layer.keys, layer.values):
                    rows[:, :, first:] = _rounded(rows[:, :, first:])


def _rounded(rows: Any) -> Any:
    return torch.from_numpy(decode(*encode(rows.numpy())))


@pytest.mark.parametrize("name", KINDS)
def test_attention_sees_new_rows_as_they_are_and_old_ones_rounded(name: str) -> None:
    model = tiny_model(name)
    ids = prompt(60)
    cache, plain = Int8Cache(model, memory="16MiB"), _Rounded(config=model.config)
    done: list[int] = []
    for piece in (ids[:, :17], ids[:, 17:41], ids[:, 41:42], ids[:, 42:]):
        got, expected = (run(model, piece, each, sum(done)) for each in (cache, plain))
        assert torch.equal(got, expected)
        plain.round(sum(done))
        done.append(piece.shape[1])
        assert cache.get_seq_length() == sum(done)


def test_history_is_what_the_format_keeps() -> None:
    model = tiny_model("llama")
    ids = prompt(40)
    cache, plain = Int8Cache(model, memory="16MiB"), transformers.DynamicCache(config=model.config)
    run(model, ids, cache)
    run(model, ids, plain)
    keys, _ = cache.layers[0].update(
        plain.layers[0].keys[:, :, :1], plain.layers[0].values[:, :, :1]
    )
    assert torch.equal(keys[:, :, :40], _rounded(plain.layers[0].keys))
    assert torch.equal(keys[:, :, 40:], plain.layers[0].keys[:, :, :1])


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"prompt_lookup_num_tokens": 3}])
def test_generation_agrees_with_plain_generation(name: str, options: dict[str, int]) -> None:
    """On margins of random models, that a rounding of 1/127 does not bridge within six tokens."""
    if name == "qwen3_next" and "prompt_lookup_num_tokens" in options:
        pytest.skip("recurrent state cannot take drafts back")
    model = tiny_model(name)
    ids = prompt(40, seed=5)
    got = answer(model, ids, cache=Int8Cache(model, memory="16MiB"), **options)
    expected = answer(model, ids, **options)
    assert (got == expected).float().mean() >= 42 / 46


@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_taking_positions_back_leaves_no_trace(name: str) -> None:
    model = tiny_model(name)
    ids = prompt(40, seed=6)
    cache, other = Int8Cache(model, memory="16MiB"), Int8Cache(model, memory="16MiB")
    for each in (cache, other):
        each.activate_past_recording()
        run(model, ids[:, :20], each)
        each.crop(0)
    run(model, prompt(9, seed=7), cache, 20)
    cache.crop(-9)
    assert cache.get_seq_length() == 20
    assert torch.equal(go_on(model, ids, 20, cache), go_on(model, ids, 20, other))
    with pytest.raises(InvalidArgumentError, match="negative"):
        cache.crop(3)


def test_rows_are_chosen_repeated_and_forgotten() -> None:
    model = tiny_model("llama")
    ids = torch.cat([prompt(30, seed=8), prompt(30, seed=9)])
    cache = Int8Cache(model, memory="16MiB")
    run(model, ids, cache)
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([3, 0]))
    cache.reorder_cache(torch.tensor([1, 1, 0]))
    alone = Int8Cache(model, memory="16MiB")
    run(model, ids[:1], alone)
    got = run(model, prompt(5).expand(3, -1), cache, 30)
    torch.testing.assert_close(got[:1], run(model, prompt(5), alone, 30), rtol=1e-4, atol=1e-5)
    assert torch.equal(got[0], got[1])
    assert not torch.equal(got[0], got[2])
    with pytest.raises(InvalidArgumentError, match="a batch of 1, the cache has 3 rows"):
        run(model, prompt(1), cache)
    cache.reset()
    assert cache.pages.cache.stats().used_bytes == 0
    assert cache.get_seq_length() == 0
    run(model, prompt(1), cache)


def test_what_is_refused_leaves_the_rows_as_they_are() -> None:
    model = tiny_model("llama")
    ids = torch.cat([prompt(30, seed=8), prompt(30, seed=9)])
    cache, other = (Int8Cache(model, memory="16MiB", sequences=3) for _ in range(2))
    for each in (cache, other):
        run(model, ids, each)
    for wrong in (torch.tensor([5, 0]), torch.tensor([0, -1])):
        with pytest.raises(InvalidArgumentError, match=r"row: must be 0\.\.1"):
            cache.reorder_cache(wrong)
    with pytest.raises(InvalidArgumentError, match="indices: "):
        cache.batch_select_indices(torch.tensor([9]))
    with pytest.raises(InvalidArgumentError, match="repeats: must be 1"):
        cache.batch_repeat_interleave(0)
    with pytest.raises(OutOfCapacityError, match="the plan allows 3"):
        cache.reorder_cache(torch.tensor([1, 0]))
    for wrong in ("x", None, -0.5):
        with pytest.raises(InvalidArgumentError, match="tokens_to_remove: expected an integer"):
            cache.crop(wrong)
    assert cache.pages.cache.stats().open_sequences == 2
    after = [run(model, prompt(5).expand(2, -1), each, 30) for each in (cache, other)]
    assert torch.equal(*after)
    cache.crop(-1000)  # as a layer of transformers, more than there is
    assert cache.get_seq_length() == 0
    other.reset()
    assert torch.equal(*(run(model, ids, each) for each in (cache, other)))


def test_memory_is_limited_and_small() -> None:
    model = tiny_model("llama")
    cache = Int8Cache(model, memory="1MiB")
    run(model, prompt(512), cache)
    plain = 4 * 2 * 2 * 8 * 4 * 512
    assert cache.pages.cache.stats().used_bytes <= plain * (8 + 4) / 32
    small = Int8Cache(model, memory="64KiB")
    with pytest.raises(OutOfCapacityError):
        run(model, prompt(512), small)


def test_what_has_no_full_attention_is_refused() -> None:
    for name in ("mamba2", "deepseek_v32"):
        with pytest.raises(UnsupportedError, match="no layer of full attention"):
            Int8Cache(tiny_model(name))
    assert len(Int8Cache(tiny_config("llama"), memory="1MiB").layers) == 4
