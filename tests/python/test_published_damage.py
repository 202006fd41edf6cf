"""Published prompt caches that are damaged, or that lie: all of it is refused, nothing changes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.published_caches import NAME, Written, cache_for, check_hit, put_manifest, write

import kvcache
from kvcache import check_stored, load_published
from kvcache.errors import CorruptionError, KVCacheError, NotFoundError, UnsupportedError
from kvcache.published import load
from kvcache.published.files import MANIFEST_BYTES
from kvcache.published.manifest import decode_manifest

TOKENS = np.arange(21, dtype=np.int32) * 7 + 1
Fields = dict[str, Any]


@pytest.fixture
def cache() -> kvcache.Cache:
    return cache_for("hybrid")


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return write(tmp_path / "p", "hybrid", TOKENS, block=8)


def refused(cache: kvcache.Cache, written: Written, error: type[KVCacheError], match: str) -> None:
    before = cache.stats()
    with pytest.raises(error, match=match):
        load_published(cache, written.path, TOKENS)
    assert cache.stats() == before


# ---- Every rule, broken once ------------------------------------------------------------------


def put(*path: Any, value: Any) -> Callable[[Fields], None]:
    def change(fields: Any) -> None:
        for step in path[:-1]:
            fields = fields[step]
        fields[path[-1]] = value

    return change


def drop(*path: Any) -> Callable[[Fields], None]:
    def change(fields: Any) -> None:
        for step in path[:-1]:
            fields = fields[step]
        del fields[path[-1]]

    return change


def both(*changes: Callable[[Fields], None]) -> Callable[[Fields], None]:
    def change(fields: Fields) -> None:
        for each in changes:
            each(fields)

    return change


def swap(name: str) -> Callable[[Fields], None]:
    def change(fields: Fields) -> None:
        fields[name][0], fields[name][1] = fields[name][1], fields[name][0]

    return change


def again(name: str, index: int) -> Callable[[Fields], None]:
    return lambda fields: fields[name].insert(index, fields[name][index])


BLOCK, TENSOR = ("blocks", 0), ("state_tensors", 0)
HASH = "is no SHA-256"
UNSAFE = "is no relative path of plain names"
RULES: dict[str, tuple[Callable[[Fields], None], str]] = {
    "no prefix content": (put("prefix_content_fingerprint", value=""), "content_finger.* is empty"),
    "block size": (put("block_size_tokens", value=0), "block_size_tokens: is 0"),
    "block size, i32": (put("block_size_tokens", value=2**31), "block_size_tokens: is 2147483648"),
    "no layers": (put("layer_count", value=0), "layer_count: is 0"),
    "range": (put("global_layer_start", value=4), "4..4 is no range of 4 layers"),
    "range, end": (put("global_layer_end", value=5), "0..5 is no range of 4 layers"),
    "layout too short": (drop("layer_layout", 3), "layer_layout: 3 for 4 layers"),
    "offsets too short": (drop("layer_prefix_offsets", 3), "layer_prefix_offsets: 3 for 4"),
    "batch": (put("batch_size", value=0), "batch_size: is 0"),
    "batch, i32": (put("batch_size", value=2**31), "batch_size: is 2147483648"),
    "no tokens": (put("total_prefix_tokens", value=0), "total_prefix_tokens: is 0"),
    "prefix hash": (put("prefix_sha256", value="A" * 64), f"prefix_sha256: {HASH}"),
    "topology": (put("topology", "shard", value=[2, 2]), "topology.shard: no rank 2 of 2"),
    "topology, empty": (put("topology", "stage", value=[0, 0]), "topology.stage: no rank 0 of 0"),
    "no segments": (put("state_segments", value=[]), "state_segments: they end at 0 of 4"),
    "segment id": (put("state_segments", 0, "id", value=" "), "state_segments.0..id: is blank"),
    "segment gap": (put("state_segments", 0, "layers", "start", value=1), "1..4 does not follow 0"),
    "segment empty": (put("state_segments", 0, "layers", "end", value=0), "0..0 does not follow"),
    "segment short": (put("state_segments", 0, "layers", "end", value=3), "they end at 3 of 4"),
    "segment twice": (
        put(
            "state_segments",
            value=[{"id": "a", "layers": {"start": i, "end": i + 2}} for i in (0, 2)],
        ),
        "'a' is there twice",
    ),
    "offset above 0": (put("layer_prefix_offsets", 0, value=1), "offsets.0.: 1 leaves no prefix"),
    "offset below": (put("layer_prefix_offsets", 0, value=-22), "offsets.0.: -22 leaves no"),
    "policy": (
        put("layer_layout", 2, "key_value", "head_dim", value=0),
        r"layer_layout: \[2\].key_value.head_dim: .* got 0",
    ),
    "policy unknown": (put("layer_layout", 0, value="none"), "layer_layout"),
    "policy of attention": (put("layer_layout", value=["full"] * 4), "is no cache policy"),
    "policy extended": (
        put("layer_layout", 2, "key_value", "value_head_dim", value=4),
        r"layer_layout\[2\]: is not of this schema",
    ),
    "block of no layer": (put(*BLOCK, "global_layer", value=4), "no layer 4 here"),
    "block beyond": (put("blocks", 2, "end", value=22), "16..22 is not within the layer's 21"),
    "block below": (put(*BLOCK, "start", value=-1), "-1..8 is not within"),
    "block empty": (put(*BLOCK, "end", value=0), "0..0 is not within"),
    "block bytes": (put(*BLOCK, "logical_bytes", value=0), "logical_bytes: is 0"),
    "block shape": (put(*BLOCK, "first_shape", value=[]), r"first_shape: is \[\], not \[1, 2, 8"),
    "block heads": (put(*BLOCK, "first_shape", 1, value=1), "first_shape: is .1, 1, 8, 8., not"),
    "block width": (put(*BLOCK, "second_shape", 3, value=4), "second_shape: is .1, 2, 8, 4., not"),
    "block hash": (put(*BLOCK, "payload_sha256", value="0" * 63), HASH),
    "block path": (put(*BLOCK, "shard", value="../block-00000000.safetensors"), UNSAFE),
    "block path, root": (put(*BLOCK, "shard", value="/etc/passwd"), UNSAFE),
    "block path, empty": (put(*BLOCK, "shard", value=""), UNSAFE),
    "block path, dot": (put(*BLOCK, "shard", value="a/./b"), UNSAFE),
    "block path, gap": (put(*BLOCK, "shard", value="a//b"), UNSAFE),
    "block path, backslash": (put(*BLOCK, "shard", value="a\\b"), UNSAFE),
    "block path, zero": (put(*BLOCK, "shard", value="a\0b"), UNSAFE),
    "block order": (swap("blocks"), "there twice or not in order"),
    "block twice": (again("blocks", 1), "there twice or not in order"),
    "representation": (
        put(*BLOCK, "representation", value="compressed_latent_rotary"),
        "representation: is 'compressed_latent_rotary', not key_value",
    ),
    "block of fixed state": (put(*BLOCK, "global_layer", value=0), "the layer has no attention"),
    "rank": (
        put(*BLOCK, "rank", value={"shard_rank": 0}),
        "rank: is not that of the topology",
    ),
    "rank missing": (put("topology", "shard", value=[2, 1]), "rank: is not that of the topology"),
    "array names": (put(*BLOCK, "first_array", value="values"), "arrays are called"),
    "two dtypes": (put(*BLOCK, "first_dtype", value="Bfloat16"), "are not one dtype"),
    "tensor twice": (again("state_tensors", 0), "state.convolution.0 of 0 is there twice"),
    "tensor missing": (drop("state_tensors", 2), r"state_tensors\[2\]: expected state.recurrent"),
    "tensor last missing": (drop("state_tensors", 4), r"\[4\]: expected state.position_delta of"),
    "tensor of no layer": (
        put(*TENSOR, "owner", value={"layer": 9}),
        "expected state.convolution.0 of layer 0",
    ),
    "tensor owner": (put(*TENSOR, "owner", value="model"), r"state_tensors\[0\]"),
    "tensor role": (put(*TENSOR, "role", value="memory"), r"state_tensors\[0\]: .*unknown"),
    "tensor more": (
        put(*TENSOR, "role", value={"convolution": {"slot": 7}}),
        "expected state.convolution.0",
    ),
    "tensor order": (swap("state_tensors"), "expected state.convolution.0 of layer 0"),
    "tensor shape": (put(*TENSOR, "shape", 1, value=2), r"shape: is \[1, 2, 5\], not \[1, 3, 5\]"),
    "tensor dtype": (put(*TENSOR, "dtype", value="Int8"), "dtype: 'Int8' is not floating"),
    "tensor bytes": (put(*TENSOR, "logical_bytes", value=0), "logical_bytes: is 0"),
    "tensor hash": (put(*TENSOR, "payload_sha256", value=""), HASH),
    "tensor array": (put(*TENSOR, "array", value="keys"), "array: is 'keys', not 'state'"),
    "tensor path": (put(*TENSOR, "shard", value="a/.."), UNSAFE),
    "no blocks": (drop("blocks", slice(0, 3)), "layer 2: has none"),
    "hole": (drop("blocks", 1), "layer 2: 8..16 is missing"),
    "late start": (drop("blocks", 0), "layer 2: starts at 8, but 0 is needed"),
    "late window": (drop("blocks", slice(3, 5)), "layer 3: starts at 16, but 15 is needed"),
    "early end": (drop("blocks", 2), "layer 2: ends at 16 of 21"),
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_kept(cache: kvcache.Cache, written: Written, rule: str) -> None:
    change, match = RULES[rule]
    written.edit(change)
    refused(cache, written, CorruptionError, match)


PLACES: dict[tuple[Any, ...], set[str]] = {  # with the names that may be missing
    (): {"application_namespace"},
    BLOCK: {"rank"},
    TENSOR: set(),
    ("topology",): {"stage", "shard", "addressable"},
    ("state_segments", 0): set(),
    ("state_segments", 0, "layers"): set(),
}


def test_all_fields_but_options_are_needed(cache: kvcache.Cache, written: Written) -> None:
    whole = written.manifest
    for place, options in PLACES.items():
        fields: Any = whole
        for step in place:
            fields = fields[step]
        for name in fields.keys() - options:
            put_manifest(written.generation, whole)
            written.edit(drop(*place, name))
            refused(cache, written, CorruptionError, name)
    for place, options in PLACES.items():
        for name in options:
            put_manifest(written.generation, whole)
            written.edit(drop(*place, name))
            decode_manifest((written.generation / "manifest.json").read_bytes())
    put_manifest(written.generation, whole | {"distributed_commit": None, "later": [1]})
    assert load_published(cache, written.path, TOKENS) == 21


@pytest.mark.parametrize("version", [7, 9, 0, 2**40])
def test_another_schema_is_told_before_anything_else(
    cache: kvcache.Cache, written: Written, version: int
) -> None:
    put_manifest(written.generation, {"schema_version": version, "blocks": "elsewhere"})
    refused(cache, written, UnsupportedError, f"schema version {version}; only 8")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{",
        b"null",
        b'{"schema_version": "8"}',
        b'{"schema_version": 8.5}',
        b'{"schema_version": true}',
        b'{"schema_version": 8}',
        b'{"schema_version": 8, "model_family": "\xff"}',
        b'{"schema_version": 8, "layer_layout": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"schema_version": 8, "blocks": ' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_manifest_is_refused(
    cache: kvcache.Cache, written: Written, text: bytes
) -> None:
    (written.generation / "manifest.json").write_bytes(text)
    refused(cache, written, CorruptionError, "manifest.json")


@pytest.mark.parametrize("value", [-1, 2**63, 2**70, 1e300, None, "8", [], {}])
def test_numbers_of_any_kind_are_refused_or_read(
    cache: kvcache.Cache, written: Written, value: Any
) -> None:
    whole = written.manifest
    for name in ("layer_count", "batch_size", "total_prefix_tokens", "block_size_tokens"):
        put_manifest(written.generation, whole | {name: value})
        refused(cache, written, CorruptionError, "manifest.json")
    for name in ("start", "end", "global_layer", "logical_bytes", "first_shape"):
        put_manifest(written.generation, whole)
        written.edit(put(*BLOCK, name, value=value))
        refused(cache, written, CorruptionError, "manifest.json")


def test_a_shape_beyond_32_bits_is_refused(cache: kvcache.Cache, tmp_path: Path) -> None:
    written = write(tmp_path / "p", "multimodal", TOKENS)

    def change(fields: Fields) -> None:
        fields["total_prefix_tokens"] = 2**40
        fields["blocks"] = [block for block in fields["blocks"] if block["start"] == 0]
        for block in fields["blocks"]:
            block["end"] = 2**40
            for side in ("first_shape", "second_shape"):
                block[side][2] = 2**40

    written.edit(change)
    refused(cache, written, CorruptionError, r"state_tensors\[1\]: .*1099511627776 is not in")


def test_a_huge_manifest_is_not_read(cache: kvcache.Cache, written: Written) -> None:
    os.truncate(written.generation / "manifest.json", MANIFEST_BYTES + 1)
    refused(cache, written, CorruptionError, "at most")


# ---- The files --------------------------------------------------------------------------------


def test_every_byte_of_a_payload_counts(cache: kvcache.Cache, written: Written) -> None:
    for shard in written.shards():
        raw = shard.read_bytes()
        payload = 8 + int.from_bytes(raw[:8], "little")
        for at in {payload, (payload + len(raw)) // 2, len(raw) - 1}:
            damaged = bytearray(raw)
            damaged[at] ^= 16
            shard.write_bytes(damaged)
            refused(cache, written, CorruptionError, f"{shard.name}: its SHA-256")
        shard.write_bytes(raw)
    assert load_published(cache, written.path, TOKENS) == 21


def test_a_header_is_refused_or_means_the_same(cache: kvcache.Cache, written: Written) -> None:
    harmless = 0
    for shard in written.shards()[:1] + written.shards()[-1:]:
        raw = shard.read_bytes()
        for at in range(8 + int.from_bytes(raw[:8], "little")):
            for bit in (1, 64)[at % 2 :: 2]:
                damaged = bytearray(raw)
                damaged[at] ^= bit
                shard.write_bytes(damaged)
                problems = check_stored(written.path, deep=True).problems
                assert not problems or shard.name in problems[0]
                harmless += not problems
                if problems and at % 7 == 0:
                    refused(cache, written, CorruptionError, shard.name)
        shard.write_bytes(raw)
    assert harmless < 40  # spaces that became tabs, and the like
    assert load_published(cache, written.path, TOKENS) == 21
    assert check_hit(cache, written, np.append(TOKENS, 5)) == 21


@pytest.mark.parametrize("length", [0, 1, 2**20 + 1, 2**31, 2**60, 2**64 - 1])
def test_a_header_of_any_length_is_refused(
    cache: kvcache.Cache, written: Written, length: int
) -> None:
    shard = written.shards()[0]
    raw = shard.read_bytes()
    shard.write_bytes(length.to_bytes(8, "little") + raw[8:])
    refused(cache, written, CorruptionError, f"{shard.name}: .*header")


def header(change: Callable[[Fields], None]) -> Callable[[bytes], bytes]:
    """A shard with another header, its length included."""

    def damage(raw: bytes) -> bytes:
        end = 8 + int.from_bytes(raw[:8], "little")
        fields = json.loads(raw[8:end])
        change(fields)
        text = json.dumps(fields).encode()
        return len(text).to_bytes(8, "little") + text + raw[end:]

    return damage


SHARDS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda _: b"", "ends 8 bytes too early"),
    "seven bytes": (lambda raw: raw[:7], "ends 1 bytes too early"),
    "header only": (lambda raw: raw[: 8 + int.from_bytes(raw[:8], "little")], "bytes of arrays"),
    "half": (lambda raw: raw[: len(raw) // 2], "header|bytes of arrays"),
    "shorter": (lambda raw: raw[:-1], "bytes of arrays"),
    "longer": (lambda raw: raw + b"\0", "bytes of arrays"),
    "another array": (
        header(put("more", value={"dtype": "F16", "shape": [0], "data_offsets": [0, 0]})),
        "expected arrays",
    ),
    "no arrays": (header(lambda fields: fields.clear()), "expected arrays"),
    "another dtype": (header(put("keys", "dtype", value="BF16")), "keys is BF16"),
    "another shape": (header(put("keys", "shape", value=[1, 2, 8, 4])), "keys is F16"),
    "a flat shape": (header(put("keys", "shape", value=[128])), "keys is F16"),
    "an overlap": (header(put("values", "data_offsets", value=[0, 256])), "does not lie at 256"),
    "a gap": (header(put("values", "data_offsets", value=[264, 520])), "does not lie at 256"),
    "beyond": (header(put("values", "data_offsets", value=[256, 2**62])), "does not lie at 256"),
    "backwards": (header(put("values", "data_offsets", value=[512, 256])), "does not lie at"),
    "negative": (header(put("keys", "data_offsets", value=[-1, 256])), "its header"),
    "no offsets": (header(drop("keys", "data_offsets")), "its header: .*data_offsets"),
    "no object": (header(put("keys", value=7)), "its header"),
    "twice": (
        lambda _: (42).to_bytes(8, "little") + b'{"keys": 1, "keys": 2}'.ljust(42),
        "keys.* occurs twice",
    ),
}


@pytest.mark.parametrize("damage", SHARDS)
def test_a_shard_is_what_the_manifest_says(
    cache: kvcache.Cache, written: Written, damage: str
) -> None:
    shard = written.shards()[0]
    change, match = SHARDS[damage]
    shard.write_bytes(change(shard.read_bytes()))
    refused(cache, written, CorruptionError, f"{shard.name}: .*({match})")


def test_arrays_in_another_order_and_metadata_do_not_matter(
    cache: kvcache.Cache, written: Written
) -> None:
    shard = written.shards()[0]
    turned = header(
        lambda fields: fields.update({"__metadata__": {"a": "b"}, "keys": fields.pop("keys")})
    )
    shard.write_bytes(turned(shard.read_bytes()))
    assert load_published(cache, written.path, TOKENS) == 21
    assert check_hit(cache, written, np.append(TOKENS, 5)) == 21


def test_shards_that_changed_places_are_told(cache: kvcache.Cache, written: Written) -> None:
    first, second = written.shards()[:2]
    one, other = first.read_bytes(), second.read_bytes()
    assert len(one) == len(other)
    first.write_bytes(other)
    second.write_bytes(one)
    refused(cache, written, CorruptionError, f"{first.name}: its SHA-256")
    first.write_bytes(one)
    second.unlink()
    refused(cache, written, CorruptionError, f"{second.name}: No such file")


def test_no_link_is_followed(cache: kvcache.Cache, written: Written, tmp_path: Path) -> None:
    shard = written.shards()[0]
    moved = tmp_path / "outside.safetensors"
    shard.rename(moved)
    for target in (moved, written.shards()[0], Path("missing")):
        shard.symlink_to(target)
        refused(cache, written, CorruptionError, shard.name)
        shard.unlink()
    os.mkfifo(shard)
    refused(cache, written, CorruptionError, f"{shard.name}: is no regular file")
    shard.unlink()
    shard.mkdir()
    refused(cache, written, CorruptionError, f"{shard.name}: is no regular file")
    shard.rmdir()
    inner = written.generation / "inner"
    inner.symlink_to(tmp_path)
    whole = written.manifest
    written.edit(put(*BLOCK, "shard", value="inner/outside.safetensors"))
    refused(cache, written, CorruptionError, "inner")
    inner.unlink()
    inner.mkdir()
    moved.rename(inner / "outside.safetensors")
    assert load_published(cache, written.path, TOKENS) == 21
    put_manifest(written.generation, whole)


def test_a_shard_deep_down_takes_no_more_descriptors(
    cache: kvcache.Cache, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = ["a"] * 100
    shard = written.shards()[0]
    inner = written.generation.joinpath(*steps)
    inner.mkdir(parents=True)
    shard.rename(inner / shard.name)
    written.edit(put(*BLOCK, "shard", value="/".join([*steps, shard.name])))
    is_open, most = set(), [0]
    real_open, real_close = os.open, os.close

    def opened(*arguments: Any, **options: Any) -> int:
        is_open.add(found := real_open(*arguments, **options))
        most[0] = max(most[0], len(is_open))
        return found

    def closed(descriptor: int) -> None:
        is_open.discard(descriptor)
        real_close(descriptor)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "close", closed)
    assert load_published(cache, written.path, TOKENS) == 21
    assert most[0] < 10


def test_a_linked_generation_is_refused(
    cache: kvcache.Cache, written: Written, tmp_path: Path
) -> None:
    moved = tmp_path / "moved"
    written.generation.rename(moved)
    written.generation.symlink_to(moved)
    refused(cache, written, CorruptionError, NAME)
    written.generation.unlink()
    refused(cache, written, CorruptionError, "No such file")
    moved.rename(written.generation)
    assert load_published(cache, written.path, TOKENS) == 21
    link = tmp_path / "link"
    link.symlink_to(written.path)
    assert load_published(cache, link, TOKENS) == 21  # the path is the caller's


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        NAME.encode(),
        NAME[:-1].encode() + b"\n",
        f"{NAME}\n{NAME}\n".encode(),
        b"..\n",
        b".\n",
        f"../.generations/{NAME}\n".encode(),
        f"/{NAME}\n".encode(),
        b"a\\b\n",
        b"a\0b\n",
        b"\xff\n",
        b"a" * 256 + b"\n",
        b"a" * 100_000,
    ],
)
def test_current_names_one_generation(cache: kvcache.Cache, written: Written, text: bytes) -> None:
    (written.path / "CURRENT").write_bytes(text)
    refused(cache, written, CorruptionError, r"CURRENT|No such file|too long")


def test_current_is_a_file(cache: kvcache.Cache, written: Written) -> None:
    current = written.path / "CURRENT"
    current.rename(written.path / "real")
    current.symlink_to("real")
    refused(cache, written, CorruptionError, "CURRENT")
    current.unlink()
    refused(cache, written, NotFoundError, "no prompt cache")
    os.mkfifo(current)
    refused(cache, written, CorruptionError, "CURRENT: is no regular file")


def test_what_changes_between_check_and_use_is_noticed(
    cache: kvcache.Cache, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = written.shards()[-1]
    raw = shard.read_bytes()
    check = load._Stored.check

    def then_damage(prefix: Any) -> None:
        check(prefix)
        shard.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))

    monkeypatch.setattr(load._Stored, "check", then_damage)
    with pytest.raises(CorruptionError, match="its SHA-256"):
        load_published(cache, written.path, TOKENS)
    assert cache.stats().pages == 0
    assert cache.stats().open_sequences == 0
    shard.write_bytes(raw)


def test_a_cache_that_is_cleared_meanwhile_is_told(
    cache: kvcache.Cache, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = kvcache.Sequence.publish

    def then_clear(sequence: kvcache.Sequence) -> None:
        publish(sequence)
        cache.clear()

    monkeypatch.setattr(kvcache.Sequence, "publish", then_clear)
    with pytest.raises(NotFoundError, match="0 of 21 positions were kept; the cache was cleared"):
        load_published(cache, written.path, TOKENS)
    assert cache.stats().open_sequences == 0


def test_a_replaced_generation_is_the_one_that_is_read(
    cache: kvcache.Cache, written: Written, tmp_path: Path
) -> None:
    other = write(tmp_path / "other", "hybrid", TOKENS, seed=1)
    shutil.move(other.generation, written.path / ".generations" / "generation-2")
    (written.path / "CURRENT").write_text("generation-2\n")
    assert load_published(cache, written.path, TOKENS) == 21
    assert check_hit(cache, other, np.append(TOKENS, 5)) == 21
