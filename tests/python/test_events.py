"""Events for routers: the schema on the wire, and every way a block comes and goes."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from model.driver import SHAPES
from model.router import Names, Router
from support.declarations import paged

from kvcache import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Cache,
    InvalidArgumentError,
    KVEventBatch,
    StatePlan,
    UnsupportedError,
    space_digest,
)


def make_cache(shape: str = "full", *, capacity: int = 1000, **options: Any) -> Cache:
    plan = StatePlan(SHAPES[shape], memory="4MiB", block_tokens=4)
    options = {"backing": False, **options}
    return Cache(plan, event_capacity=capacity, snapshots_per_path=0, **options)


def store(cache: Cache, tokens: list[int], *, snapshot: bool = True, **space: Any) -> None:
    with cache.open(tokens, **space) as sequence:
        sequence.advance(len(tokens) - sequence.length)
        if snapshot:
            sequence.snapshot()
        sequence.publish()


def stored(events: list[Any]) -> list[BlockStored]:
    return [event for event in events if isinstance(event, BlockStored)]


# ---- What peers decode: written after the schema that they publish --------------------------


class PeerEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    pass


class VllmStored(PeerEvent, tag="BlockStored"):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class VllmRemoved(PeerEvent, tag="BlockRemoved"):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class SglangStored(PeerEvent, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None = None
    cache_salt: str | None = None
    session_id: str | None = None
    lora_name: str | None = None


class SglangRemoved(PeerEvent, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None = None


class PeerCleared(PeerEvent, tag="AllBlocksCleared"):
    pass


class VllmBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[VllmStored | VllmRemoved | PeerCleared]
    data_parallel_rank: int | None = None


class SglangBatch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[SglangStored | SglangRemoved | PeerCleared]
    attn_dp_rank: int | None = None


@pytest.mark.parametrize("batch_type", [VllmBatch, SglangBatch])
def test_peers_decode_every_event(batch_type: Any) -> None:
    cache = make_cache("everything")
    store(cache, list(range(11)), adapter=("tuned", "7"), salt="secret", media=[(3, 2, b"cat")])
    cache.erase(adapter="tuned")
    cache.clear()
    store(cache, [1, 2, 3, 4])
    events = [*make_cache().events_snapshot(), *cache.take_events()]
    assert {type(event) for event in events} == {AllBlocksCleared, BlockStored}
    events.append(BlockRemoved(block_hashes=[2**64 - 1], medium="GPU", group_idx=1))
    wire = msgspec.msgpack.encode(KVEventBatch(ts=1.5, events=events, data_parallel_rank=3))
    batch = msgspec.msgpack.decode(wire, type=batch_type)
    assert (batch.ts, len(batch.events)) == (1.5, len(events))
    for ours, theirs in zip(events, batch.events, strict=True):
        assert type(theirs).__struct_config__.tag == type(ours).__name__
        for field in set(theirs.__struct_fields__) & set(ours.__struct_fields__):
            assert getattr(theirs, field) == getattr(ours, field)
    assert msgspec.msgpack.decode(wire, type=KVEventBatch).events == events


def test_a_batch_is_an_array_of_maps_without_what_says_nothing() -> None:
    cache = make_cache()
    store(cache, [1, 2, 3, 4, 5])
    [event] = cache.take_events()
    batch = msgspec.msgpack.decode(msgspec.msgpack.encode(KVEventBatch(ts=0.0, events=[event])))
    assert (batch[0], batch[2]) == (0.0, None)
    [said] = batch[1]
    assert said.pop("block_hashes") == [Names(cache.plan).name([1, 2, 3, 4])]
    assert said == {
        "type": "BlockStored",
        "parent_block_hash": None,
        "token_ids": [1, 2, 3, 4],
        "block_size": 4,
        "lora_id": None,
        "medium": "CPU",
        "lora_name": None,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


def test_consumers_may_count_events_and_set_the_rank_of_a_batch() -> None:
    cache = make_cache("everything")
    store(cache, list(range(11)), adapter="tuned", media=[(3, 2, b"cat")])
    events: list[Any] = [*cache.take_events(), *make_cache().events_snapshot()]
    events.append(BlockRemoved(block_hashes=[1], medium="GPU", group_idx=1))
    batch = KVEventBatch(ts=1.0, events=events)
    batch.data_parallel_rank = 2
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(batch), type=KVEventBatch)
    assert again.data_parallel_rank == 2
    counted = Counter([*events, *events])
    assert counted == dict.fromkeys(events, 2)
    assert len({hash(event) for event in events}) == len(counted) == len(events)


def test_later_events_of_a_space_say_its_salt_and_media_that_reach_over_many_blocks() -> None:
    cache = make_cache()
    media = [(2, 1, b"a"), (3, 9, b"b"), (13, 1, b"c"), (14, 1, b"d")]
    prompt = list(range(20))
    store(cache, prompt[:12], salt="s", media=media[:2])
    events = stored(cache.take_events())
    store(cache, prompt, salt="s", media=media)
    events += stored(cache.take_events())
    salt = space_digest(salt="s")
    keys = [key for event in events for key in event.extra_keys or []]
    a, b, c, d = (digest.hex() for _, _, digest in media)
    assert keys == [((a, 2), (b, 3), salt), ((b, -1),), ((b, -5),), ((c, 1), (d, 2)), None]
    assert [(event.cache_salt, event.parent_block_hash is None) for event in events] == [
        (salt, True),
        (salt, False),
    ]


# ---- What is said ---------------------------------------------------------------------------


def test_only_whole_blocks_are_announced_and_a_tail_that_grows_when_it_is_one() -> None:
    cache = make_cache()
    names = Names(cache.plan)
    prompt = list(range(20))
    store(cache, prompt[:3])
    assert cache.take_events() == []
    store(cache, prompt[:7])
    [first] = cache.take_events()
    assert (first.block_hashes, first.parent_block_hash) == ([names.name(prompt[:4])], None)
    store(cache, prompt[:17])
    [more] = cache.take_events()
    assert more.block_hashes == [names.name(prompt[:n]) for n in (8, 12, 16)]
    assert more.parent_block_hash == names.name(prompt[:4])
    assert more.token_ids == prompt[4:16]


def test_a_branch_inside_a_block_announces_the_blocks_that_differ() -> None:
    cache = make_cache()
    names = Names(cache.plan)
    store(cache, [1] * 12)
    cache.take_events()
    other = [1] * 6 + [2] * 6
    store(cache, other)
    [event] = cache.take_events()
    assert event.block_hashes == [names.name(other[:8]), names.name(other[:12])]
    assert event.parent_block_hash == names.name([1] * 4)


def test_spaces_adapters_and_media_have_other_names_and_no_secret_is_told() -> None:
    cache = make_cache()
    prompt = list(range(8))
    spaces: list[dict[str, Any]] = [
        {},
        {"namespace": "n"},
        {"salt": "n"},
        {"adapter": "n"},
        {"adapter": ("n", "1")},
        {"media": [(1, 6, b"n")]},
        {"media": [(1, 6, b"m")]},
        {"media": [(1, 5, b"n")]},
        {"media": [(2, 5, b"n")]},
    ]
    seen = []
    for space in spaces:
        store(cache, prompt, **space)
        [event] = stored(cache.take_events())
        seen.append(event)
    assert len({event.block_hashes[1] for event in seen}) == len(spaces)
    assert [event.cache_salt for event in seen] == [
        space_digest(space.get("namespace", ""), space.get("salt", "")) for space in spaces
    ]
    said = [(event.lora_name, event.extra_keys) for event in seen]
    assert said[0] == (None, None)
    assert said[1] == (None, [(space_digest("n"),), None])
    assert said[2] == (None, [(space_digest(salt="n"),), None])
    assert said[3] == ("n", [("n",), ("n",)])
    assert said[4] == ("n@1", [("n@1",), ("n@1",)])
    assert said[5] == (None, [((b"n".hex(), 1),), ((b"n".hex(), -3),)])
    assert space_digest("n") != space_digest(salt="n")
    assert space_digest() is None


def test_names_are_the_same_in_every_cache_and_for_every_length_known_before() -> None:
    prompt, media = list(range(40)), [(6, 3, b"a"), (21, 10, b"b")]
    whole = make_cache()
    store(whole, prompt, media=media)
    bit_by_bit = make_cache()
    for n in (3, 9, 21, 30, 31, 40):
        store(bit_by_bit, prompt[:n], media=[item for item in media if item[0] + item[1] <= n])
    one = bit_by_bit.open(prompt[:1])
    for n in range(1, 40):  # one sequence that publishes as it grows, and goes back
        item = [item for item in media if item[0] == n]
        one.extend(prompt[n : n + 1], media=[(n, 1, b"x")] if item else [])
        one.advance(n + 1 - one.length)
        one.publish()
        if n % 7 == 0:
            one.truncate(n - 3)
            one.extend(prompt[n - 3 : n + 1])
    one.close()

    def names(cache: Cache) -> set[int]:
        return {name for event in stored(cache.events_snapshot()) for name in event.block_hashes}

    router = Router(1)
    router.apply(bit_by_bit.take_events())
    assert names(whole) <= names(bit_by_bit)
    assert router.blocks[0] == names(bit_by_bit)


def test_snapshots_have_a_group_of_their_own_and_any_position() -> None:
    cache = make_cache("hybrid")
    names = Names(cache.plan)
    prompt = list(range(10))
    store(cache, prompt[:8])
    store(cache, prompt)
    states = [event for event in stored(cache.take_events()) if event.group_idx == 1]
    assert [event.block_hashes for event in states] == [
        [names.name(prompt[:8])],
        [names.name(prompt)],
    ]
    assert [(event.token_ids, event.block_size) for event in states] == [
        ([4, 5, 6, 7], 4),
        ([8, 9], 2),
    ]
    assert [event.parent_block_hash for event in states] == [
        names.name(prompt[:4]),
        names.name(prompt[:8]),
    ]
    assert {event.kv_cache_spec_kind for event in states} == {"mamba"}


@pytest.mark.parametrize(
    ("shape", "kinds"),
    [
        ("chunked", {("chunked_local_attention", None)}),
        ("latent", {("mla_attention", None)}),
        ("full and sliding", {("sliding_window", 6), ("full_attention", None)}),
    ],
)
def test_groups_are_called_by_the_names_that_vllm_has_for_them(
    shape: str, kinds: set[tuple[str, int | None]]
) -> None:
    cache = make_cache(shape)
    store(cache, list(range(9)))
    said = {
        (event.kv_cache_spec_kind, event.kv_cache_spec_sliding_window)
        for event in stored(cache.events_snapshot())
        if event.kv_cache_spec_sliding_window != 1  # whose pages nobody needs
    }
    assert said == kinds


# ---- How it stops being there ---------------------------------------------------------------


def test_clear_and_new_weights_clear_and_what_comes_later_is_announced_again() -> None:
    cache = make_cache()
    store(cache, [1, 2, 3, 4])
    for drop in (cache.clear, cache.bump_epoch):
        drop()
        store(cache, [1, 2, 3, 4])
        cleared, event = cache.take_events()
        assert isinstance(cleared, AllBlocksCleared)
        assert event.block_hashes == [Names(cache.plan).name([1, 2, 3, 4])]


def test_what_old_weights_publish_is_not_announced() -> None:
    cache = make_cache()
    with cache.open([1, 2, 3, 4]) as sequence:
        sequence.advance(4)
        cache.bump_epoch()
        sequence.publish()
    assert cache.take_events() == [AllBlocksCleared()]


def test_a_loaded_prefix_is_announced(tmp_path: Path) -> None:
    plan = StatePlan(SHAPES["hybrid"], memory="4MiB", block_tokens=4)
    first, second = (Cache(plan, event_capacity=100) for _ in range(2))
    with first.open(list(range(9)), adapter="a") as sequence:
        for layer in (0, 2):
            parts = plan.paged_components(layer)
            rows = [[[[0.0] * part.width] * part.heads] * 9 for part in parts]
            sequence.write(layer, 0, *(np.array(each, np.float16) for each in rows))
        sequence.advance(9)
        sequence.snapshot()
        sequence.publish()
    first.save(tmp_path / "saved", list(range(9)), adapter="a")
    second.load(tmp_path / "saved", adapter="a")
    assert second.take_events() == first.take_events()


def test_a_snapshot_takes_the_place_of_the_events_that_wait() -> None:
    cache = make_cache()
    router = Router(1)
    store(cache, list(range(8)))
    router.apply(cache.events_snapshot())
    assert router.counts[0].total() == 2
    router.apply(cache.take_events())
    cache.erase(list(range(8)))
    router.apply(cache.take_events())
    assert router.counts[0].total() == 0


@pytest.mark.parametrize("failure", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("take", [Cache.take_events, Cache.events_snapshot])
def test_events_that_do_not_arrive_are_said_again(
    take: Any, failure: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, router = make_cache(), Router(1)
    store(cache, [1] * 8)
    router.apply(cache.take_events())
    store(cache, [2] * 8)
    cache.erase([1] * 8)

    def fail(*_: Any) -> None:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr("kvcache.cache.published", fail)
        with pytest.raises(failure):
            take(cache)
    assert cache.stats().event_losses == 1
    store(cache, [3] * 8)
    router.apply(cache.take_events())
    names = Names(cache.plan)
    said = {names.name([n] * length) for n in (2, 3) for length in (4, 8)}
    assert (router.blocks[0], router.cleared) == (said, 1)


def test_a_router_that_lost_events_is_told_everything() -> None:
    cache = make_cache(capacity=5)
    router = Router(1)
    for prompt in range(4):
        store(cache, [prompt] * 12)
    events = cache.take_events()
    assert isinstance(events[0], AllBlocksCleared)
    router.apply(events)
    assert len(router.blocks[0]) == 12
    store(cache, [9] * 20)  # five are not too many
    router.apply(cache.take_events())
    assert (router.cleared, len(router.blocks[0])) == (1, 17)


# ---- A router after every operation ---------------------------------------------------------


def random_operation(cache: Cache, rng: random.Random, held: list[Any]) -> None:
    tokens = [rng.choice([1, 2]) for _ in range(rng.randint(1, 24))]
    space: dict[str, Any] = {"namespace": rng.choice(["", "n"]), "adapter": rng.choice(["", "a"])}
    media = [(3, 4, rng.choice([b"x", b"y"]))] if len(tokens) > 8 and rng.random() < 0.4 else []
    chance = rng.random()
    if chance < 0.6:
        sequence = cache.open(tokens, media=media, **space)
        if rng.random() < 0.3:
            middle = rng.randint(sequence.length, len(tokens))
            sequence.advance(middle - sequence.length)
            sequence.snapshot(rng.choice(["exact", "f16"]))
        sequence.advance(len(tokens) - sequence.length)
        if rng.random() < 0.5:
            sequence.snapshot(rng.choice(["exact", "f16"]))
        sequence.publish()
        held.append(sequence)
    elif chance < 0.75 and held:
        held.pop(rng.randrange(len(held))).close()
    elif chance < 0.85:
        cache.erase(tokens[: rng.randint(1, 3)], media=[], **space)
    elif chance < 0.9:
        cache.erase(namespace=rng.choice(["", "n"]), adapter=rng.choice([None, "a"]))
    elif chance < 0.93:
        cache.clear()
    elif chance < 0.96:
        cache.bump_epoch()
    while len(held) > 6:
        held.pop(0).close()


@pytest.mark.parametrize("policy", ["lru", "price_list"])
@pytest.mark.parametrize("capacity_blocks", [0, 20])
@pytest.mark.parametrize(
    "shape", ["full", "everything", "pooled", "sinks in two blocks", "chunked"]
)
def test_a_router_knows_what_there_is_after_every_operation(
    shape: str, capacity_blocks: int, policy: str
) -> None:
    cache = make_cache(shape, capacity_blocks=capacity_blocks, policy=policy)
    router = Router(len(cache.plan.groups))
    rng, held = random.Random(f"{shape} {capacity_blocks} {policy}"), []
    for step in range(300):
        random_operation(cache, rng, held)
        chance = rng.random()
        if chance < 0.3:
            continue
        if chance < 0.8:
            router.apply(cache.take_events())
        now, snapshot = Router(len(cache.plan.groups)), cache.events_snapshot()
        now.apply(snapshot)
        if chance >= 0.8:
            router.apply(snapshot)  # in place of what waits
        assert router.blocks == now.blocks, step
    for sequence in held:
        sequence.close()
    if capacity_blocks:
        assert cache.stats().evicted_blocks > 0


def test_windows_that_give_way_are_removed_and_come_back() -> None:
    """A sliding group loses pages inside a run while the others keep theirs."""
    plan = StatePlan(
        [paged(0, "attention.keys", 2, 2048, window=8), paged(1, "attention.keys", 2, 2048)],
        memory="2MiB",
        block_tokens=4,
    )
    cache = Cache(plan, backing=False, event_capacity=10_000)
    router = Router(2)
    removed: set[int | None] = set()
    for prompt in range(12):
        store(cache, [prompt] * 64)
        events = cache.take_events()
        removed |= {event.group_idx for event in events if isinstance(event, BlockRemoved)}
        router.apply(events)
    assert removed == {0, 1}
    assert cache.plan.groups[1].window == 8
    assert router.blocks[1] < router.blocks[0]


# ---- Wrong input ----------------------------------------------------------------------------


def test_a_cache_without_events_says_what_to_do() -> None:
    cache = make_cache(capacity=0)
    for call in (cache.take_events, cache.events_snapshot):
        with pytest.raises(UnsupportedError, match="event_capacity"):
            call()


@pytest.mark.parametrize("capacity", [-1, 2**64, "10", 1.5, None])
def test_a_capacity_that_is_no_count_is_refused(capacity: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="event_capacity"):
        make_cache(capacity=capacity)


@pytest.mark.parametrize("medium", [1, b"CPU", "\ud800"])
def test_a_medium_is_text(medium: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="medium"):
        make_cache().take_events(medium)
    with pytest.raises(InvalidArgumentError, match="medium"):
        make_cache().events_snapshot(medium)


def test_a_space_is_text_or_bytes() -> None:
    with pytest.raises(InvalidArgumentError, match="salt"):
        space_digest(salt=3)  # type: ignore[arg-type]
