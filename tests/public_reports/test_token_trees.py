"""Public bug reports on trees of drafts and on what rejected drafts leave behind, one test each."""

from __future__ import annotations

import numpy as np
from support.tiny_model import (
    CONV,
    DELTA,
    FULL,
    RECURRENT,
    SLIDING,
    VOCABULARY,
    Reference,
    TinyModel,
    VerifyStore,
    assert_equals,
    feed,
    run_batch,
)

import kvcache
from kvcache import Batch, TokenTree

PROMPT = [4, 2, 7, 1, 9, 3, 6]
# Two guesses at each of two positions; the right ones are never the first rows.
TREE = TokenTree([-1, 0, 0, 1, 2, 2])


def decoded(model: TinyModel, prompt: list[int], steps: int) -> Reference:
    reference = Reference(model)
    pick = [reference.step(token) for token in prompt][-1]
    for _ in range(steps):
        pick = reference.step(pick)
    return reference


def wrong(token: int) -> int:
    return (token + 1) % VOCABULARY


def guesses(reference: Reference, at: int) -> list[int]:
    """The path of rows 0, 2 and 5 is right."""
    first, second = reference.tokens[at + 1 : at + 3]
    return [wrong(first), first, wrong(second), wrong(second), second]


def ready(cache: kvcache.Cache, model: TinyModel, prompt: list[int]) -> kvcache.Sequence:
    sequence = cache.open(prompt)
    sequence.extend([feed(model, sequence, [])])
    return sequence


def test_rows_of_a_path_that_is_no_prefix_become_dense() -> None:
    """sgl-project/sglang#15360: accepted rows lay scattered but were taken as dense."""
    model = TinyModel((FULL, SLIDING))
    reference = decoded(model, PROMPT, 30)
    sequence = ready(model.cache(), model, PROMPT)
    for _ in range(4):
        with sequence.begin_verify(guesses(reference, sequence.length), TREE) as session:
            picks = model.run(session.tokens, session.start, VerifyStore(sequence, session), TREE)
            path, bonus = TREE.accept(session.tokens, picks)
            assert path.tolist() == [0, 2, 5]
            session.commit(path)
        assert_equals(sequence, reference)
        sequence.extend([bonus])


def test_paths_of_a_batch_are_shorter_than_its_trees() -> None:
    """sgl-project/sglang#26866: indices of accepted rows were read past their end for a batch."""
    model = TinyModel((FULL,))
    prompts = [PROMPT, PROMPT[:3], PROMPT[2:]]
    references = [decoded(model, prompt, 10) for prompt in prompts]
    cache = model.cache()
    batch = Batch([ready(cache, model, prompt) for prompt in prompts])
    drafts = [guesses(r, n) for r, n in zip(references, batch.lengths, strict=True)]
    drafts[1][1] = wrong(drafts[1][1])  # nothing of the second is right
    counts, parents = [TREE.nodes - 1] * 3, np.tile(TREE.parents, 3)
    with batch.begin_verify(np.concatenate(drafts), counts, parents) as session:
        picks = run_batch(model, session, [TREE] * 3)
        tokens = np.split(session.tokens, session.offsets[1:-1])
        paths = [TREE.accept(t, p)[0].tolist() for t, p in zip(tokens, picks, strict=True)]
        assert paths == [[0, 2, 5], [0], [0, 2, 5]]
        session.commit(np.array([[*path, -1, -1][:3] for path in paths]))
    for sequence, reference in zip(batch.sequences, references, strict=True):
        assert_equals(sequence, reference)


def test_the_state_is_that_of_the_last_accepted_row() -> None:
    """sgl-project/sglang#27463: row n - 1 was committed for n accepted rows, as if in a chain."""
    model = TinyModel((DELTA, FULL))
    reference = decoded(model, PROMPT, 10)
    sequence = ready(model.cache(), model, PROMPT)
    with sequence.begin_verify(guesses(reference, sequence.length), TREE) as session:
        model.run(session.tokens, session.start, VerifyStore(sequence, session), TREE)
        session.commit([0, 2, 5])
    length = len(PROMPT) + 3
    for name in (CONV, RECURRENT):
        expected = reference.after[length - 1][name]
        np.testing.assert_array_equal(sequence.state(DELTA, name), expected)


def test_pages_of_rejected_rows_are_given_back() -> None:
    """sgl-project/sglang#13741: pages taken for drafts were never freed, until none was left."""
    model = TinyModel((FULL,))
    cache = model.cache(memory=256 * 1024)
    sequence = ready(cache, model, PROMPT)
    used = cache.stats().used_bytes
    for _ in range(300):  # each takes 16 pages, many times what there is
        with sequence.begin_verify([1] * 60, TokenTree([-1, *[0] * 60])) as session:
            rows = np.zeros((61, 2, 6), np.float32)
            session.write(FULL, rows, rows)
        assert cache.stats().used_bytes == used
