"""Trees of drafts against sequential decoding: state, rows and tokens equal bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from model.driver import INTEGERS, SHAPES
from support.drafts import SESSIONS, drafts_for, random_parents
from support.tiny_model import (
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
)

import kvcache
from kvcache import InvalidArgumentError, OutOfCapacityError, TokenTree, UnsupportedError

PROMPT = [1, 5, 2, 8, 3, 9, 4]
MODELS = {
    "hybrid": (DELTA, FULL, SLIDING),
    "attention": (FULL,),
    "sliding": (SLIDING,),
    "recurrent": (DELTA,),
}


def sequential(model: TinyModel, steps: int) -> Reference:
    reference = Reference(model)
    pick = [reference.step(token) for token in PROMPT][-1]
    for _ in range(steps):
        pick = reference.step(pick)
    return reference


def started(model: TinyModel, **options: Any) -> tuple[Any, Any, int]:
    cache = model.cache(**options)
    sequence = cache.open(PROMPT)
    return cache, sequence, feed(model, sequence, [])


def verify(
    model: TinyModel, sequence: kvcache.Sequence, drafts: list[int], tree: TokenTree
) -> tuple[list[int], int]:
    with sequence.begin_verify(drafts, tree) as session:
        assert session.positions.tolist() == tree.positions(sequence.length).tolist()
        store = VerifyStore(sequence, session)
        picks = model.run(session.tokens, session.start, store, tree)
        path, bonus = tree.accept(session.tokens, picks)
        assert session.commit(path) == session.start + len(path)
    return path.tolist(), bonus


@pytest.mark.parametrize("storage", ["f16", "int8"])
@pytest.mark.parametrize("layers", MODELS.values(), ids=MODELS)
def test_trees_equal_sequential_decoding(layers: tuple[int, ...], storage: str) -> None:
    left, seed, seen = max(12, SESSIONS // (2 * len(MODELS))), 0, []
    while left > 0:
        model = TinyModel(layers, storage, seed=seed)
        reference = sequential(model, 80)
        _, sequence, pick = started(model, memory="2MiB")
        rng = np.random.default_rng(seed)
        seed += 1
        while sequence.length < 60 and left > 0:
            left -= 1
            sequence.extend([pick])
            tree = TokenTree(random_parents(rng, int(rng.integers(1, 14))))
            following = reference.tokens[sequence.length + 1 :]
            drafts = drafts_for(
                rng, tree, following, float(rng.choice([0.0, 0.5, 1.0])), VOCABULARY
            )
            path, pick = verify(model, sequence, drafts, tree)
            seen.append(path)
            assert_equals(sequence, reference)
            assert pick == reference.tokens[sequence.length]
    assert any(len(path) == 1 for path in seen), "some tree is rejected whole"
    assert any(path != list(range(len(path))) for path in seen), "some path is not the first rows"
    assert any(len(path) > 3 for path in seen), "some path is long"


def ran(
    plan: kvcache.StatePlan, cache: kvcache.Cache, prompt: int, rng: np.random.Generator
) -> kvcache.Sequence:
    """A sequence of ``prompt`` positions with random rows and state."""
    sequence = cache.open(list(range(prompt + 1)))
    for layer in layers_of(plan):
        sequence.write(layer, 0, *random_rows(plan, layer, prompt, rng))
    sequence.advance(prompt)
    return sequence


def layers_of(plan: kvcache.StatePlan) -> list[int]:
    return sorted({part.layer for group in plan.groups for part in group.components})


def random_rows(
    plan: kvcache.StatePlan, layer: int, count: int, rng: np.random.Generator
) -> list[Any]:
    parts = []
    for part in plan.paged_components(layer):
        shape = (count, part.heads, part.width)
        if part.dtype in INTEGERS:
            parts.append(rng.integers(0, 200, shape).astype(INTEGERS[part.dtype]))
        else:
            parts.append(rng.standard_normal(shape).astype(np.float32))
    return parts


def stored_bytes(
    cache: kvcache.Cache, sequence: kvcache.Sequence, layer: int, start: int, stop: int
) -> list[bytes]:
    """Rows and scales as they lie in the pages, whether a window still sees them or not."""
    found = []
    for part in sequence.plan.paged_components(layer):
        memory = cache.pages(layer, part.component)
        block, row = np.divmod(np.arange(start, stop), sequence.plan.block_tokens)
        pages = sequence.block_table(memory.group)[block]
        assert (pages >= 0).all()
        rows = memory.rows.bits if hasattr(memory.rows, "bits") else memory.rows
        found.append(np.asarray(rows)[pages, row].tobytes())
        if memory.scales is not None:
            found.append(memory.scales[pages, row].tobytes())
    return found


PAGED = {
    name: decls
    for name, decls in SHAPES.items()
    if any(d.kind == "paged_kv" for d in decls) and all(d.record_tokens == 1 for d in decls)
}


@pytest.mark.parametrize("name", PAGED)
def test_an_accepted_path_is_stored_as_if_it_had_come_alone(name: str) -> None:
    """Every storage format and every kind of attention; the pages hold the same bytes."""
    plan = kvcache.StatePlan(PAGED[name], memory="16MiB", block_tokens=4, sequences=8)
    layers, moved = layers_of(plan), 0
    for seed in range(max(4, SESSIONS // (2 * len(PAGED)))):
        rng = np.random.default_rng(seed)
        cache = kvcache.Cache(plan)
        prompt = int(rng.integers(1, 20))
        sequence = ran(plan, cache, prompt, np.random.default_rng(seed))
        plain = ran(plan, cache, prompt, np.random.default_rng(seed))
        if seed % 2:
            sequence.publish()  # the block that the rows begin in is shared
        tree = TokenTree(random_parents(rng, int(rng.integers(1, 24))))
        path = tree.path(int(rng.integers(0, tree.nodes)))
        moved += path.tolist() != list(range(len(path)))
        drafts = rng.integers(0, 1000, tree.nodes - 1)
        with sequence.begin_verify(drafts, tree) as session:
            tokens = session.tokens[path]
            plain.extend(tokens[1:])
            for layer in layers:
                rows = random_rows(plan, layer, tree.nodes, rng)
                session.write(layer, *rows)
                plain.write(layer, prompt, *(part[path] for part in rows))
            for part in plan.fixed:
                for row in range(tree.nodes):
                    session.state(row, part.layer, part.name)[...] = row + 1
                plain.state(part.layer, part.name)[...] = path[-1] + 1
            plain.advance(len(path))
            assert session.commit(path) == plain.length
        assert sequence.tokens.tolist() == plain.tokens.tolist()
        for part in plan.fixed:
            mine, theirs = (s.state(part.layer, part.name) for s in (sequence, plain))
            np.testing.assert_array_equal(mine, theirs)
        for layer in layers:
            mine, theirs = (
                stored_bytes(cache, one, layer, prompt, plain.length) for one in (sequence, plain)
            )
            assert mine == theirs
    assert moved


def test_shared_pages_keep_their_rows() -> None:
    """A fork and a reader of the same block see nothing of a tree's rows, before and after."""
    model = TinyModel()
    reference = sequential(model, 30)
    cache, sequence, pick = started(model)
    sequence.snapshot()
    sequence.publish()
    child = sequence.fork()
    sequence.extend([pick])
    right = reference.tokens[8:11]
    tree = TokenTree([-1, 0, 0, 1, 2, 4])
    path, _ = verify(model, sequence, [0, right[0], 0, right[1], right[2]], tree)
    assert path == [0, 2, 4, 5]
    assert_equals(sequence, reference)
    assert_equals(child, reference)
    reader = cache.open([*PROMPT, 0])
    assert reader.cached_tokens == len(PROMPT)
    assert_equals(reader, reference)
    sequence.snapshot()
    sequence.publish()
    late = cache.open([*reference.tokens[:11], 0])
    assert late.cached_tokens == 11
    assert_equals(late, reference)


def test_each_row_starts_from_the_state_of_its_parent() -> None:
    model = TinyModel((DELTA,))
    _, sequence, pick = started(model)
    sequence.extend([pick])
    live = np.zeros(0)
    with sequence.begin_verify([1, 2, 3, 4], [-1, 0, 0, 1, 2]) as session:
        for row, parent in enumerate([-1, 0, 0, 1, 2]):
            state = session.state(row, DELTA, RECURRENT)
            if parent == -1:
                live = state.copy()
            else:
                np.testing.assert_array_equal(state, session.state(parent, DELTA, RECURRENT))
            state += row + 1
        last = session.state(3, DELTA, RECURRENT)
        np.testing.assert_array_equal(last, ((live + 1) + 2) + 4)


@pytest.mark.parametrize("end", ["rollback", "drop", "raise", "close"])
def test_a_tree_that_is_not_committed_leaves_no_trace(end: str) -> None:
    model = TinyModel()
    reference = sequential(model, 20)
    cache, sequence, pick = started(model)
    sequence.extend([pick])
    before = cache.stats().used_bytes
    tree = TokenTree([-1, 0, 0, 1, 1, 2, 5])
    session = sequence.begin_verify([1, 2, 3, 4, 5, 6], tree)
    model.run(session.tokens, session.start, VerifyStore(sequence, session), tree)
    if end == "rollback":
        session.rollback()
    elif end == "drop":
        del session
    elif end == "raise":
        with pytest.raises(InterruptedError), session:
            raise InterruptedError
    else:
        sequence.close()
        assert cache.stats().used_bytes == 0
        with pytest.raises(InvalidArgumentError, match="has ended; its sequence is closed"):
            session.commit([0])
        return
    assert cache.stats().used_bytes == before
    assert_equals(sequence, reference)
    feed(model, sequence, [])
    assert_equals(sequence, reference)


def test_wrong_trees_and_paths_change_nothing() -> None:
    model = TinyModel()
    reference = sequential(model, 20)
    cache, sequence, pick = started(model)
    sequence.extend([pick])
    before = cache.stats().used_bytes
    for parents, match in (
        ([-1, 0], "the tree has 2 nodes, expected 3 drafts and the root"),
        (TokenTree.linear(5), "the tree has 5 nodes, expected 3 drafts and the root"),
        ([-1, 0, 2, 0], r"parents\[2\] must be 0\.\.1"),
        ([], r"1\.\.4096 nodes, got 0"),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            sequence.begin_verify([1, 2, 3], parents)
    assert cache.stats().used_bytes == before
    tree = TokenTree([-1, 0, 0, 2])
    session = sequence.begin_verify([1, 2, 3], tree)
    with pytest.raises(InvalidArgumentError, match="layer 1 is written up to"):
        session.commit([0, 2])
    model.run(session.tokens, session.start, VerifyStore(sequence, session), tree)
    for path, match in (
        ([], r"accepted must be 1\.\.4, got 0"),
        ([1], "begins with row 0, the root, got 1"),
        ([0, 3], r"path\[1\]: row 3 is no child of row 0"),
        ([0, 2, 2], r"path\[2\]: row 2 is no child of row 2"),
        ([0, 4], r"row 4 is no child of row 0; rows are 0\.\.3"),
        ([0, -1], r"row -1 is no child"),
        ([0, 1, 2, 3, 3], r"path\[2\]"),
        ([[0, 2]], "path: expected one axis"),
        ([0.0, 2.0], "path: expected one axis of integers"),
        ([0, 2**40], "path: ids must fit int32"),
        (2, r"the drafts are a tree of 4 rows; commit the rows of the accepted path"),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            session.commit(path)
        assert session.is_open
    session.rollback()
    assert cache.stats().used_bytes == before
    assert_equals(sequence, reference)


def test_one_path_is_committed_by_its_length_or_by_its_rows() -> None:
    model = TinyModel()
    reference = sequential(model, 20)
    for linear in (None, [-1, 0, 1, 2], TokenTree.linear(4)):
        for accepted in (2, np.int64(2), np.array(2), [0, 1], (0, 1), np.array([0, 1])):
            _, sequence, pick = started(model)
            sequence.extend([pick])
            drafts = reference.tokens[8:11]
            with sequence.begin_verify(drafts, linear) as session:
                model.run(session.tokens, session.start, VerifyStore(sequence, session))
                with pytest.raises(InvalidArgumentError, match=r"path\[1\] must be 1"):
                    session.commit([0, 2])
                assert session.commit(accepted) == 9
            assert_equals(sequence, reference)


def test_pooled_records_follow_one_path_only() -> None:
    plan = kvcache.StatePlan(SHAPES["pooled"], memory="2MiB", block_tokens=4, sequences=2)
    cache = kvcache.Cache(plan)
    sequence = cache.open([1])
    before = cache.stats().used_bytes
    with pytest.raises(UnsupportedError, match="records pooled over 4 consecutive positions"):
        sequence.begin_verify([1, 2], [-1, 0, 0])
    assert cache.stats().used_bytes == before
    with sequence.begin_verify([1, 2], [-1, 0, 1]) as session:
        assert session.rows == 3


def test_a_tree_takes_a_slot_and_a_row_for_each_node() -> None:
    model = TinyModel()
    cache, sequence, pick = started(model)
    sequence.extend([pick])
    before = cache.stats()
    with sequence.begin_verify([1] * 12, [-1, *[0] * 12]):
        during = cache.stats()
        assert during.snapshots - before.snapshots == 13
        assert during.pages - before.pages == 2 * 3  # positions 7..19 of blocks of 4, two groups
    assert cache.stats().used_bytes == before.used_bytes
    small = model.cache(memory=256 * 1024)
    one = small.open([1])
    used = small.stats().used_bytes
    with pytest.raises(OutOfCapacityError):
        one.begin_verify([1] * 4000, [-1, *[0] * 4000])
    assert small.stats().used_bytes == used


def test_a_ledger_counts_trees_without_bytes() -> None:
    model = TinyModel()
    cache = model.cache(backing=False)
    sequence = cache.open(PROMPT)
    sequence.advance(len(PROMPT))
    sequence.extend([1])
    with sequence.begin_verify([1, 2, 3], [-1, 0, 0, 2]) as session:
        assert cache.stats().snapshots == 4
        assert session.commit([0, 2, 3]) == len(PROMPT) + 3
    assert sequence.tokens.tolist() == [*PROMPT, 1, 2, 3]
    assert cache.stats().snapshots == 0
