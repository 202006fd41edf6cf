"""Public bug reports on references and concurrency, one test each."""

from __future__ import annotations

import gc
import itertools
import threading

import numpy as np
from support.tiny_model import DELTA, FULL, Reference, TinyModel, assert_equals, feed, verify

import kvcache

MODEL = TinyModel((FULL,))
PROMPT = [i % 11 for i in range(41)]  # 10 whole blocks of 4, and a token that must run


def published(cache: kvcache.Cache, prompt: list[int]) -> kvcache.Sequence:
    sequence = cache.open(prompt)
    feed(MODEL, sequence, [])
    sequence.publish()
    return sequence


def reference_of(prompt: list[int], model: TinyModel = MODEL) -> Reference:
    reference = Reference(model)
    for token in prompt:
        reference.step(token)
    return reference


def test_publishing_before_closing_leaks_no_reference() -> None:
    """xLLM-AI/xllm#828: caching before freeing raised a count that never fell again."""
    cache = MODEL.cache()
    for _ in range(3):
        published(cache, PROMPT).close()
        assert cache.stats().pages == 11
    cache.clear()
    assert (cache.stats().pages, cache.stats().used_bytes) == (0, 0)


def test_eviction_does_not_free_what_a_sequence_holds() -> None:
    """Avarok-Cybersecurity/atlas#373: eviction freed a block that a sequence still used."""
    cache = MODEL.cache(memory=128 * 1024)
    with published(cache, PROMPT) as holder:
        for first in range(90):
            prompt = [100 + first, *PROMPT[1:]]
            with cache.open(prompt) as other:
                rows = np.full((len(prompt), 2, 6), first, np.float32)
                other.write(FULL, 0, rows, rows)
                other.advance(len(prompt))
                other.publish()
        assert cache.stats().evicted_blocks > 100
        assert_equals(holder, reference_of(PROMPT))
    cache.clear()
    assert cache.stats().pages == 0


def test_blocks_of_a_hit_that_are_not_used_are_let_go() -> None:
    """vllm-project/vllm#35931: locks on hit chunks that ran again were never given back."""
    cache = MODEL.cache()
    published(cache, PROMPT).close()
    with cache.open(PROMPT) as sequence:
        assert sequence.cached_tokens == 40
        sequence.truncate(24)  # 6 of the 10 blocks
        cache.clear()
        assert cache.stats().pages == 6
        feed(MODEL, sequence, PROMPT[24:])
        assert_equals(sequence, reference_of(PROMPT))
    assert cache.stats().pages == 0


def test_counts_are_exact_when_threads_share_a_prefix() -> None:
    """taco-project/FlexKV#173: reference counts were changed outside the lock."""
    cache = MODEL.cache(sequences=64)
    published(cache, PROMPT).close()
    failures: list[BaseException] = []
    rows = np.zeros((1, 2, 6), np.float32)

    def churn() -> None:
        try:
            for _ in range(150):
                with cache.open(PROMPT) as one, one.fork() as two:
                    two.write(FULL, two.length, rows, rows)
                    two.advance(1)
                    two.publish()
                    one.truncate(13)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=churn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    cache.clear()
    stats = cache.stats()
    assert (stats.pages, stats.open_sequences, stats.used_bytes) == (0, 0, 0)


def test_what_was_planned_and_never_run_is_given_back() -> None:
    """taco-project/FlexKV#236: cancelling a task that was never launched leaked its resources."""
    model = TinyModel((DELTA, FULL))
    cache = model.cache()
    idle = cache.stats().used_bytes
    for _ in range(5):
        cache.open(PROMPT).close()
        assert cache.stats().used_bytes == idle
    with cache.open(PROMPT) as sequence:
        feed(model, sequence, [])
        sequence.extend([1])
        before = cache.stats().used_bytes
        for _ in range(5):
            sequence.begin_verify([1] * 8).rollback()
            assert cache.stats().used_bytes == before
        verify(model, sequence, [1])
        sequence.close()
    assert cache.stats().used_bytes == idle


def test_a_removed_prefix_is_a_miss() -> None:
    """kvcache-ai/Mooncake#2447: a hot cache served an object that had been removed."""
    cache = MODEL.cache()
    published(cache, PROMPT).close()
    assert cache.explain(PROMPT).cached_tokens == 40
    cache.clear()
    assert cache.explain(PROMPT).matched_tokens == 0
    with cache.open(PROMPT) as again:
        assert (again.matched_tokens, again.cached_tokens) == (0, 0)


# ---- What else goes wrong with references -----------------------------------------------------


def test_forks_of_forks_may_end_in_any_order() -> None:
    for order in itertools.permutations(range(4)):
        cache = MODEL.cache()
        family = [published(cache, PROMPT)]
        family += [family[0].fork(), family[0].fork()]
        family.append(family[1].fork())
        for step, member in enumerate(order):
            family[member].truncate(39 - step)
            feed(MODEL, family[member], [step, step])
        for member in order:
            reference = reference_of(family[member].tokens.tolist())
            assert_equals(family[member], reference)
            family[member].close()
            family[member].close()  # once more: nothing
        assert cache.stats().pages == 11
        cache.clear()
        assert cache.stats().used_bytes == 0


def test_beams_share_all_but_their_last_block() -> None:
    cache = MODEL.cache(sequences=64)
    with published(cache, PROMPT) as prompt:
        beams = [prompt.fork() for _ in range(32)]
        assert cache.stats().pages == 11
        for number, beam in enumerate(beams):
            feed(MODEL, beam, [number % 11])
        assert cache.stats().pages == 11 + 32
        for number, beam in enumerate(beams):
            assert_equals(beam, reference_of([*PROMPT, number % 11]))
            beam.close()
        assert cache.stats().pages == 11


def test_a_cache_may_go_before_what_it_gave() -> None:
    cache = TinyModel((DELTA, FULL)).cache()
    sequence = cache.open(PROMPT[:5])
    feed(TinyModel((DELTA, FULL)), sequence, [])
    view, pages = sequence.state(DELTA, "state.recurrent"), sequence.views(FULL, 0, 5)[0]
    kept, rows = view.copy(), pages[0].rows.copy()
    del cache
    gc.collect()
    sequence.close()
    del sequence
    gc.collect()
    assert np.array_equal(view, kept)
    assert np.array_equal(pages[0].rows, rows)


def test_a_sequence_of_another_cache_is_nobody_here() -> None:
    """There are no ids to mix up: what one cache gave, another neither counts nor frees."""
    one, two = MODEL.cache(), MODEL.cache()
    mine = published(one, PROMPT)
    before = two.stats()
    mine.fork().close()
    mine.close()
    assert two.stats() == before
    assert two.explain(PROMPT).matched_tokens == 0
