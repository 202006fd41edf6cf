"""Every class of cache layer is restored exactly or refused with a reason, and so is bad input."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from support.tiny_transformers import (  # noqa: E402
    VOCABULARY,
    WINDOW,
    prompt,
    tiny_config,
    tiny_model,
)
from support.transformers_runs import (  # noqa: E402
    answer,
    go_on,
    insert,
    next_turn,
    run,
    stored_answer,
)
from transformers import cache_utils  # noqa: E402

from kvcache.errors import InvalidArgumentError, UnsupportedError  # noqa: E402
from kvcache.integrations.transformers import PrefixStore, generate  # noqa: E402
from kvcache.integrations.transformers import layers as known  # noqa: E402

STATIC = [
    "llama",
    "gemma3_text",
    "qwen3_next",
    "mamba2",
    "falcon_h1",
    "deepseek_v32",
    "inkling2_text",
]


def store_of(model: Any, **options: Any) -> PrefixStore:
    return PrefixStore(model, **{"memory": "64MiB", **options})


def test_every_class_of_layer_is_known_or_left_out_on_purpose() -> None:
    """A class that a later transformers adds fails here before it fails a user."""
    mixins = (cache_utils.CacheLayerMixin, cache_utils.LinearAttentionCacheLayerMixin)
    classes = {
        each
        for each in vars(cache_utils).values()
        if isinstance(each, type)
        and issubclass(each, (*mixins, cache_utils.DummyLayer))
        and each not in mixins
    }
    served = known._FULL | known._SLIDING | known._WITHOUT_ROWS
    lossy = {each for each in classes if issubclass(each, cache_utils.BaseQuantizedLayer)}
    assert classes - lossy == served


@pytest.mark.parametrize("name", STATIC)
@pytest.mark.parametrize("length", [WINDOW - 1, WINDOW, WINDOW + 1, 50])
def test_a_static_cache_is_filled_and_goes_on_exactly(name: str, length: int) -> None:
    model = tiny_model(name)
    store = store_of(model)
    ids = prompt(length + 9, seed=length)
    live, into = (transformers.StaticCache(model.config, max_cache_len=96) for _ in range(2))
    run(model, ids[:, :length], live)
    source = live
    if name in ("gemma3_text", "inkling2_text"):  # its window drops rows
        source, _ = store.lookup(ids)
        run(model, ids[:, :length], source)
    insert(store, ids[:, :length], source)
    restored, found = store.lookup(ids, into=into)
    assert restored is into
    assert found == length
    got, expected = (go_on(model, ids, length, cache) for cache in (restored, live))
    if source is not live:  # what was stored ran in a dynamic cache, which may round otherwise
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    else:
        assert torch.equal(got, expected)
    with pytest.raises(InvalidArgumentError, match="empty cache"):
        store.lookup(ids, into=into)


@pytest.mark.parametrize("name", STATIC)
def test_a_static_cache_is_stored(name: str) -> None:
    model = tiny_model(name)
    store = store_of(model)
    ids = prompt(WINDOW, seed=3)
    static = transformers.StaticCache(model.config, max_cache_len=96)
    run(model, ids[:, :20], static)
    assert insert(store, ids[:, :20], static) == 20
    restored, found = store.lookup(ids)
    assert found == 20
    got, expected = (go_on(model, ids, 20, cache) for cache in (restored, static))
    tolerance = 1e-3 if name != "deepseek_v32" else 2.0  # what it selects flips by rounding
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=tolerance)
    for layer, held in zip(restored.layers, static.layers, strict=True):
        if getattr(layer, "indexer_keys", None) is not None:
            assert torch.equal(layer.indexer_keys[:, :20], held.indexer_keys[:, :20])


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_window_that_has_dropped_rows_is_refused(kind: str) -> None:
    model = tiny_model("gemma3_text")
    store = store_of(model)
    ids = prompt(WINDOW + 9)
    cache = transformers.DynamicCache(config=model.config)
    if kind == "static":
        cache = transformers.StaticCache(model.config, max_cache_len=96)
    run(model, ids, cache)
    with pytest.raises(UnsupportedError, match="sliding layers have dropped rows"):
        store.insert(ids, cache)
    assert store.cache.stats().indexed_tokens == 0


def test_a_cache_without_a_config_keeps_all_rows_and_is_stored() -> None:
    model = tiny_model("gemma3_text")
    store = store_of(model)
    ids = prompt(WINDOW + 20)
    cache = transformers.DynamicCache()
    run(model, ids[:, :40], cache)
    assert store.insert(ids[:, :40], cache) == 40
    assert store.lookup(ids)[1] == 40


def t5() -> Any:
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        eos_token_id=None,
    )
    return transformers.T5ForConditionalGeneration(config).eval()


def test_the_self_attention_of_an_encoder_decoder_depends_on_the_encoders_input() -> None:
    model = t5()
    store = store_of(model)
    heard, others = prompt(12, seed=1), prompt(12, seed=2)
    said = prompt(40, seed=3)

    @torch.no_grad()
    def decode(ids: Any, cache: Any, encoder: Any) -> Any:
        return model(
            encoder_outputs=model.get_encoder()(encoder),
            decoder_input_ids=ids,
            cache=cache,
            use_cache=True,
        ).logits

    live, found = store.lookup(said, context=heard)
    assert found == 0
    decode(said[:, :30], live, heard)
    assert store.insert(said[:, :30], live, context=heard) == 30
    restored, found = store.lookup(said, context=heard)
    assert found == 30
    rest = said[:, 30:]
    assert torch.equal(decode(rest, restored, heard), decode(rest, live, heard))
    assert store.lookup(said, context=others)[1] == 0
    with pytest.raises(InvalidArgumentError, match="the encoder's input"):
        store.lookup(said)
    with pytest.raises(UnsupportedError, match="encoder-decoder"):
        generate(model, heard, store=store)


@pytest.mark.parametrize("name", ["llama", "deepseek_v3", "gemma3_text"])
def test_a_store_of_a_configuration_serves_the_model(name: str) -> None:
    model = tiny_model(name)
    with pytest.raises(InvalidArgumentError, match="weights: a configuration"):
        PrefixStore(tiny_config(name))
    with pytest.raises(UnsupportedError, match="has to be tried"):
        PrefixStore(tiny_config("qwen3_next"), weights="one")
    store = store_of(tiny_config(name), weights="one")
    ids = prompt(40)
    for _ in range(2):
        assert torch.equal(stored_answer(model, store, ids), answer(model, ids))
    assert store.cache.stats().cached_tokens == 39


def test_other_weights_find_nothing() -> None:
    config = tiny_config("llama")
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config).eval()
    store = store_of(model)
    ids = prompt(40)
    stored_answer(model, store, ids)
    assert store.lookup(ids)[1] == 39
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight[3, 5] += 1
    assert store.lookup(ids)[1] == 0
    assert torch.equal(stored_answer(model, store, ids), answer(model, ids))
    assert store.lookup(ids)[1] == 39
    model.lm_head.weight.data.copy_(torch.zeros(()))  # torch does not count this
    store.refresh_weights()
    assert store.lookup(ids)[1] == 0


def test_the_fingerprint_is_that_of_the_weights() -> None:
    from kvcache.integrations.transformers.identity import model_identity

    torch.manual_seed(2)
    model = transformers.LlamaForCausalLM(tiny_config("llama"))
    same = transformers.LlamaForCausalLM(tiny_config("llama"))
    other = model_identity(same)
    same.load_state_dict(model.state_dict())
    assert model_identity(same) == model_identity(model) != other
    assert model_identity(same.to(torch.bfloat16)) != model_identity(model)


def test_weights_that_are_not_in_memory_have_to_be_named() -> None:
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(tiny_config("llama"))
    with pytest.raises(InvalidArgumentError, match=r"embed_tokens.weight is not in memory"):
        PrefixStore(model)
    assert store_of(model, weights="on disk").cache.plan.block_bytes > 0


def test_int8_rows_are_close_and_smaller() -> None:
    model = tiny_model("llama")
    exact, small = store_of(model), store_of(model, format="int8")
    assert small.cache.plan.block_bytes < 0.4 * exact.cache.plan.block_bytes
    ids = prompt(50)
    live, _ = small.lookup(ids)
    run(model, ids[:, :40], live)
    insert(small, ids[:, :40], live)
    restored, found = small.lookup(ids)
    assert found == 40
    got, expected = (go_on(model, ids, 40, cache, 1) for cache in (restored, live))
    assert not torch.equal(got, expected)
    torch.testing.assert_close(got, expected, rtol=0.1, atol=0.05)


def test_prompts_longer_than_rotary_frequencies_hold_are_not_stored() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    torch.manual_seed(0)
    config = tiny_config("llama", rope_parameters=rope, max_position_embeddings=48)
    model = transformers.LlamaForCausalLM(config).eval()
    store = store_of(model)
    short, long = prompt(30), prompt(60)
    for ids in (short, long, short, long):
        assert torch.equal(stored_answer(model, store, ids), answer(model, ids))
    assert store.lookup(short)[1] == 29
    assert store.lookup(long)[1] == 0


def test_a_prompt_that_does_not_fit_is_generated_and_not_stored() -> None:
    model = tiny_model("llama")
    store = store_of(model, memory="64KiB")
    ids = prompt(300)
    assert torch.equal(stored_answer(model, store, ids), answer(model, ids))
    assert store.cache.stats().open_sequences == 0


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"cache": transformers.DynamicCache()}, InvalidArgumentError, "leave it out"),
        ({"use_cache": False}, InvalidArgumentError, "needs the cache"),
        ({"pixel_values": torch.ones(1)}, UnsupportedError, "pixel_values: an input of the model"),
        ({"cache_implementation": "static"}, UnsupportedError, "'static' cannot be filled"),
        ({"position_ids": torch.arange(20)[None]}, UnsupportedError, "position_ids: an input"),
        ({"token_healing": True}, UnsupportedError, "token_healing: what it runs"),
        ({"custom_generate": "somewhere"}, UnsupportedError, "custom_generate: what it runs"),
        ({"marks": [-1]}, InvalidArgumentError, "marks"),
        ({"marks": 5}, InvalidArgumentError, "marks: expected positions"),
        ({"store": None}, InvalidArgumentError, "store: expected a PrefixStore"),
    ],
)
def test_what_generate_refuses(options: dict[str, Any], error: type[Exception], match: str) -> None:
    model = tiny_model("llama")
    store = store_of(model)
    with pytest.raises(error, match=match):
        generate(model, prompt(20), **{"store": store, "max_new_tokens": 2, **options})
    assert store.cache.stats().open_sequences == 0


def test_what_insert_and_lookup_refuse() -> None:
    model = tiny_model("llama")
    store = store_of(model)
    ids = prompt(20)
    live, _ = store.lookup(ids)
    with pytest.raises(InvalidArgumentError, match="layers"):
        store.insert(ids, transformers.DynamicCache())
    with pytest.raises(InvalidArgumentError, match="expected"):
        store.insert(ids, live)  # nothing has run
    run(model, ids, live)
    for wrong, match in [
        (ids[:, :19], "has seen 20 positions, got 19"),
        (ids.expand(2, -1), "a batch of 1, input_ids have 2"),
        (ids.float(), "expected integers"),
        (ids[None], "expected .batch, columns."),
        (np.empty((1, 0), np.int64), "at least one token"),
    ]:
        with pytest.raises(InvalidArgumentError, match=match):
            store.insert(wrong, live)
    with pytest.raises(InvalidArgumentError, match="length: the cache has seen 20"):
        store.insert(ids, live, length=19)
    with pytest.raises(UnsupportedError, match="cache class of their own"):
        store.insert(ids, [(1, 2)])
    endless: list[Any] = []
    endless.append(endless)
    for context in (
        3.5,
        endless,
        np.array([object()]),  # its bytes are addresses, the same for what has changed
        torch.eye(3).to_sparse(),
        torch.ones(3, device="meta"),
        ["a", "\ud800"],
    ):
        with pytest.raises(InvalidArgumentError, match="context: "):
            store.lookup(ids, context=context)
    live.layers[1].keys = None
    with pytest.raises(InvalidArgumentError, match=r"layers\[1\]: expected .*, got .*values"):
        store.insert(ids, live)
    other = transformers.DynamicCache(config=tiny_config("llama", num_hidden_layers=2))
    stored_answer(model, store, ids)
    with pytest.raises(InvalidArgumentError, match="expected 4 layers, got 2"):
        store.lookup(ids, into=other)
    assert store.cache.stats().open_sequences == 0


def test_a_format_of_snapshots_that_is_none_is_refused_at_once() -> None:
    for wrong in ("q4", 5, None):
        with pytest.raises(InvalidArgumentError, match="format: expected one of 'exact'"):
            store_of(tiny_model("llama"), snapshot_format=wrong)


def test_a_recurrent_cache_must_be_told_its_length() -> None:
    model = tiny_model("mamba2")
    store = store_of(model)
    ids = prompt(20)
    live, _ = store.lookup(ids)
    run(model, ids, live)
    with pytest.raises(InvalidArgumentError, match="length: a cache of recurrent layers"):
        store.insert(ids, live)
    with pytest.raises(UnsupportedError, match="cannot take drafts back"):
        stored_answer(model, store, ids, prompt_lookup_num_tokens=3)


def test_a_quantised_cache_is_refused() -> None:
    model = tiny_model("llama")
    store = store_of(model)
    ids = prompt(20)
    cache = transformers.QuantizedCache("fp8", model.config)
    run(model, ids, cache)
    with pytest.raises(UnsupportedError, match="Fp8QuantizedLayer are not supported"):
        store.insert(ids, cache)


def test_drafts_from_the_prompt_leave_the_answer_and_the_store_as_they_are() -> None:
    for name in ("llama", "gemma3_text"):
        model = tiny_model(name)
        store = store_of(model)
        ids = torch.cat([prompt(30), prompt(30)], dim=1)
        for _ in range(2):
            got = stored_answer(model, store, ids, prompt_lookup_num_tokens=3)
            assert torch.equal(got, answer(model, ids))


def test_neither_a_model_nor_a_config_is_refused() -> None:
    for wrong in (None, 3, "llama"):
        with pytest.raises(InvalidArgumentError, match="expected a model or a config"):
            PrefixStore(wrong)


def test_the_memory_of_restored_tensors_is_their_own() -> None:
    model = tiny_model("llama")
    store = store_of(model)
    ids = prompt(30)
    stored_answer(model, store, ids)
    restored, _ = store.lookup(ids)
    kept = restored.layers[0].keys.clone()
    store.cache.clear()
    del store
    gc.collect()
    assert torch.equal(restored.layers[0].keys, kept)


@pytest.mark.parametrize("name", ["jamba", "mamba"])
def test_a_model_that_forgets_its_state_is_given_single_tokens(name: str) -> None:
    """In transformers 5.24 its kernels take no first state where several tokens run at once."""
    model = tiny_model(name)
    store = store_of(model)
    lengths: list[int] = []
    hook = model.register_forward_pre_hook(
        lambda _module, _args, named: lengths.append(named["input_ids"].shape[1]),
        with_kwargs=True,
    )
    ids = prompt(200, seed=1)
    try:
        first = stored_answer(model, store, ids, marks=[100])
        assert lengths == [199] + [1] * 6
        longer = next_turn(first, seed=2)
        del lengths[:]
        second = stored_answer(model, store, longer)
        assert lengths == [1] * (12 + 5)
        other = torch.cat([ids[:, :199], prompt(100, seed=3)], dim=1)
        del lengths[:]
        third = stored_answer(model, store, other)  # too many for single tokens
        assert lengths == [298] + [1] * 6
    finally:
        hook.remove()
    assert torch.equal(first, answer(model, ids))
    assert torch.equal(second, answer(model, longer))
    assert torch.equal(third, answer(model, other))
    with pytest.raises(UnsupportedError, match="forgets its recurrent state"):
        store.lookup(ids)


def test_a_model_whose_state_depends_on_its_pieces_is_refused() -> None:
    class Divided(transformers.LlamaForCausalLM):
        def forward(self, input_ids: Any, **named: Any) -> Any:
            rows = self.get_input_embeddings()(input_ids) * input_ids.shape[1]
            return super().forward(inputs_embeds=rows, **named)

    with pytest.raises(UnsupportedError, match="depends on how it is divided"):
        PrefixStore(Divided(tiny_config("llama")))


def test_a_model_in_training_is_looked_at_as_it_evaluates() -> None:
    model = transformers.LlamaForCausalLM(tiny_config("llama", attention_dropout=0.5)).train()
    store = store_of(model)
    assert model.training
    model.eval()
    ids = prompt(30)
    assert torch.equal(stored_answer(model, store, ids), answer(model, ids))
