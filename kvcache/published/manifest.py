"""The manifest of a published prompt cache, schema 8: its fields, and every rule they must keep.

Field names, the order of the rules and the fingerprints are those of the published line (the crates
``eredu-core`` and ``eredu-runtime``). Unknown keys are ignored, as its readers do.
"""

from __future__ import annotations

import hashlib
import re
import struct
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec

from kvcache._arguments import as_bytes, as_tokens
from kvcache.block import CacheRepresentation
from kvcache.errors import CorruptionError, InvalidArgumentError, UnsupportedError
from kvcache.policy import LayerSchedule
from kvcache.policy.layer import CompressedLatentRotary, LayerCachePolicy
from kvcache.policy.tensors import StateTensorOwner, StateTensorRole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import ArrayLike

    from kvcache.policy.tensors import StateTensorPolicy

__all__ = ["SCHEMA", "Manifest", "architecture_fingerprint", "decode_manifest", "prefix_sha256"]

SCHEMA = 8

_I32_MAX = 2**31 - 1
_ARCHITECTURE_DOMAIN = "eredu-prompt-cache-architecture-v1"
_HEX_64 = re.compile(r"[0-9a-f]{64}")

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Pair = tuple[Count, Count]


class Range(msgspec.Struct, frozen=True):
    """``start..end``, the end not included."""

    start: Count
    end: Count


class Segment(msgspec.Struct, frozen=True):
    """Layers, counted from the first one stored, that belong together: the model's, a draft's."""

    id: str
    layers: Range


class Topology(msgspec.Struct, frozen=True):
    """Which rank of what: ``(world size, rank)`` of each axis that is divided."""

    addressable_state_replicated: bool
    stage: Pair | None = None
    shard: Pair | None = None
    addressable: Pair | None = None

    def axes(self) -> dict[str, Pair | None]:
        """By name."""
        return {name: getattr(self, name) for name in ("stage", "shard", "addressable")}


class Rank(msgspec.Struct, frozen=True):
    """The rank that wrote a block; None on an axis that is not divided."""

    stage_rank: Count | None = None
    shard_rank: Count | None = None
    addressable_rank: Count | None = None


class Block(msgspec.Struct, frozen=True):
    """Rows of positions ``start..end`` of one layer: a pair of arrays in a shard of its own."""

    global_layer: Count
    representation: str
    start: Int
    end: Int
    shard: str
    first_array: str
    second_array: str
    first_shape: tuple[Int, ...]
    second_shape: tuple[Int, ...]
    first_dtype: str
    second_dtype: str
    logical_bytes: Count
    payload_sha256: str
    rank: Rank | None = None


class StateTensor(msgspec.Struct, frozen=True):
    """One state tensor of one layer, in a shard of its own."""

    owner: Any
    role: Any
    shard: str
    array: str
    shape: tuple[Int, ...]
    dtype: str
    logical_bytes: Count
    payload_sha256: str


class Fields(msgspec.Struct, frozen=True):
    """What the JSON holds."""

    schema_version: int
    model_family: str
    effective_model_type: str
    checkpoint_fingerprint: str
    prefix_content_fingerprint: str
    architecture_fingerprint: str
    layer_count: Count
    global_layer_start: Count
    global_layer_end: Count
    batch_size: Int
    layer_layout: Any
    layer_prefix_offsets: tuple[Int, ...]
    state_segments: tuple[Segment, ...]
    sink_tokens: Count
    topology: Topology
    block_size_tokens: Int
    total_prefix_tokens: Int
    prefix_sha256: str
    blocks: tuple[Block, ...]
    state_tensors: tuple[StateTensor, ...]
    application_namespace: str | None = None


class _Version(msgspec.Struct):
    schema_version: Any = None


class Manifest:
    """A manifest that keeps every rule.

    Attributes:
        fields: as in the JSON.
        layout: the policy of each stored layer.
        tensors: ``(owner's global layer, role)`` of each of ``fields.state_tensors``.
    """

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.layout: tuple[LayerCachePolicy, ...] = ()
        self.tensors: tuple[tuple[int, StateTensorRole], ...] = ()
        self._blocks: dict[int, list[Block]] = {}
        self._check_global()
        self.layout = self._read_layout()
        self._check_topology()
        self._check_segments()
        for index, offset in enumerate(fields.layer_prefix_offsets):
            if not -min(fields.total_prefix_tokens, _I32_MAX) <= offset <= 0:
                _fail(f"$.layer_prefix_offsets[{index}]", f"{offset} leaves no prefix")
        self._check_blocks()
        self.tensors = self._read_tensors()
        self._check_tensors()
        self._check_coverage()

    @property
    def layers(self) -> range:
        """Global numbers of the layers stored."""
        return range(self.fields.global_layer_start, self.fields.global_layer_end)

    @property
    def segments(self) -> list[str]:
        """Ids of the segments."""
        return [segment.id for segment in self.fields.state_segments]

    def tokens_of(self, index: int) -> int:
        """Positions of the prefix in the stored layer number ``index``."""
        return self.fields.total_prefix_tokens + self.fields.layer_prefix_offsets[index]

    def blocks_of(self, index: int) -> list[Block]:
        """Blocks of the stored layer number ``index``, by position."""
        return self._blocks.get(self.fields.global_layer_start + index, [])

    def resolved_shape(self, policy: StateTensorPolicy, index: int) -> tuple[int, ...]:
        """Elements of a state tensor of the stored layer number ``index``."""
        return policy.resolved_shape(self.fields.batch_size, self.tokens_of(index))

    # ---- The rules, in their order ----------------------------------------------------------

    def _check_global(self) -> None:
        f = self.fields
        stored = f.global_layer_end - f.global_layer_start
        _need(f.prefix_content_fingerprint != "", "$.prefix_content_fingerprint", "is empty")
        _need(
            0 < f.block_size_tokens <= _I32_MAX, "$.block_size_tokens", f"is {f.block_size_tokens}"
        )
        _need(f.layer_count > 0, "$.layer_count", "is 0")
        _need(
            f.global_layer_start < f.global_layer_end <= f.layer_count,
            "$.global_layer_start",
            f"{f.global_layer_start}..{f.global_layer_end} is no range of {f.layer_count} layers",
        )
        offsets = len(f.layer_prefix_offsets)
        _need(offsets == stored, "$.layer_prefix_offsets", f"{offsets} for {stored} layers")
        _need(0 < f.batch_size <= _I32_MAX, "$.batch_size", f"is {f.batch_size}")
        _need(f.total_prefix_tokens > 0, "$.total_prefix_tokens", f"is {f.total_prefix_tokens}")
        _need_hash(f.prefix_sha256, "$.prefix_sha256")

    def _read_layout(self) -> tuple[LayerCachePolicy, ...]:
        try:
            layout: LayerSchedule[Any] = LayerSchedule.from_dict(self.fields.layer_layout)
        except InvalidArgumentError as error:
            _fail("$.layer_layout", str(error).removeprefix("$"))
        stored = len(self.layers)
        _need(len(layout) == stored, "$.layer_layout", f"{len(layout)} for {stored} layers")
        for index, policy in enumerate(layout):
            where = f"$.layer_layout[{index}]"
            _need(isinstance(policy, LayerCachePolicy), where, "is no cache policy")
            extended = any(
                getattr(policy, name, None) is not None for name in sorted(policy.EXTENSIONS)
            ) or (policy.attention is not None and policy.attention.chunked)
            _need(not extended, where, "is not of this schema")
        return tuple(layout)

    def _check_topology(self) -> None:
        for axis, pair in self.fields.topology.axes().items():
            if pair is not None:
                _need(pair[1] < pair[0], f"$.topology.{axis}", f"no rank {pair[1]} of {pair[0]}")

    def _check_segments(self) -> None:
        end = 0
        seen = set()
        for index, segment in enumerate(self.fields.state_segments):
            where = f"$.state_segments[{index}]"
            _need(segment.id.strip() != "", f"{where}.id", "is blank")
            _need(segment.id not in seen, f"{where}.id", f"{segment.id!r} is there twice")
            start, stop = segment.layers.start, segment.layers.end
            _need(start == end < stop, f"{where}.layers", f"{start}..{stop} does not follow {end}")
            seen.add(segment.id)
            end = stop
        stored = len(self.layers)
        _need(end == stored, "$.state_segments", f"they end at {end} of {stored} layers")

    def _check_blocks(self) -> None:
        axes = self.fields.topology.axes()
        rank = None
        if any(pair is not None for pair in axes.values()):
            rank = Rank(*(None if pair is None else pair[1] for pair in axes.values()))
        last = (-1, -1, -1)
        for number, block in enumerate(self.fields.blocks):
            where = f"$.blocks[{number}]"
            place = (block.global_layer, block.start, block.end)
            _need(block.global_layer in self.layers, where, f"no layer {block.global_layer} here")
            tokens = self.tokens_of(block.global_layer - self.fields.global_layer_start)
            _need(
                0 <= block.start < block.end <= tokens,
                where,
                f"{block.start}..{block.end} is not within the layer's {tokens} tokens",
            )
            _need(block.logical_bytes > 0, f"{where}.logical_bytes", "is 0")
            _need_hash(block.payload_sha256, f"{where}.payload_sha256")
            _need_safe(block.shard, f"{where}.shard")
            _need(place > last, where, "is there twice or not in order of layer and position")
            last = place
            self._check_geometry(block, where)
            _need(block.rank == rank, f"{where}.rank", "is not that of the topology")

    def _check_geometry(self, block: Block, where: str) -> None:
        policy = self.layout[block.global_layer - self.fields.global_layer_start]
        _need(policy.attention is not None, where, "the layer has no attention")
        latent = isinstance(policy, CompressedLatentRotary)
        kind = (
            CacheRepresentation.COMPRESSED_LATENT_ROTARY
            if latent
            else CacheRepresentation.KEY_VALUE
        )
        name = f"{where}.representation"
        _need(block.representation == kind.value, name, f"is {block.representation!r}, not {kind}")
        first, second = attention_shapes(policy, self.fields.batch_size, block.end - block.start)
        for side, shape, want in (
            ("first", block.first_shape, first),
            ("second", block.second_shape, second),
        ):
            _need(shape == want, f"{where}.{side}_shape", f"is {list(shape)}, not {list(want)}")
        names = (block.first_array, block.second_array)
        _need(names == kind.array_names, where, f"its arrays are called {names}")
        same = block.first_dtype == block.second_dtype
        _need(same, where, f"{block.first_dtype} and {block.second_dtype} are not one dtype")

    def _read_tensors(self) -> tuple[tuple[int, StateTensorRole], ...]:
        found: dict[tuple[int, StateTensorRole], None] = {}
        for number, tensor in enumerate(self.fields.state_tensors):
            where = f"$.state_tensors[{number}]"
            try:
                owner: Any = StateTensorOwner.from_dict(tensor.owner)
                role = StateTensorRole.from_dict(tensor.role)
            except InvalidArgumentError as error:
                _fail(where, str(error))
            key = (owner.index, role)
            _need(key not in found, where, f"{role.stable_name()} of {owner.index} is there twice")
            found[key] = None
        return tuple(found)

    def _expected_tensors(self) -> Iterator[tuple[int, int, StateTensorPolicy]]:
        """``(index, global layer, policy)`` of each state tensor that must be, or is, there."""
        present = set(self.tensors)
        for index, (layer, policy) in enumerate(zip(self.layers, self.layout, strict=True)):
            tokens = self.tokens_of(index)
            for tensor in policy.fixed_state:
                required = tokens > 0 and tensor.presence.is_required_for(tokens)
                if required or (layer, tensor.role) in present:
                    yield index, layer, tensor

    def _check_tensors(self) -> None:
        expected = list(self._expected_tensors())
        wanted = [(layer, policy.role) for _, layer, policy in expected]
        for number, (want, given) in enumerate(zip_longest(wanted, self.tensors)):
            name = "no more" if want is None else f"{want[1].stable_name()} of layer {want[0]}"
            _need(want == given, f"$.state_tensors[{number}]", f"expected {name}")
        for number, (index, _, policy) in enumerate(expected):
            where = f"$.state_tensors[{number}]"
            tensor = self.fields.state_tensors[number]
            try:
                shape = self.resolved_shape(policy, index)
            except InvalidArgumentError as error:
                _fail(where, str(error))
            is_not = f"is {list(tensor.shape)}, not {list(shape)}"
            _need(tensor.shape == shape, f"{where}.shape", is_not)
            accepted = policy.accepts_dtype_name(tensor.dtype)
            _need(accepted, f"{where}.dtype", f"{tensor.dtype!r} is not {policy.dtype}")
            _need(tensor.logical_bytes > 0, f"{where}.logical_bytes", "is 0")
            _need_hash(tensor.payload_sha256, f"{where}.payload_sha256")
            _need(tensor.array == "state", f"{where}.array", f"is {tensor.array!r}, not 'state'")
            _need_safe(tensor.shard, f"{where}.shard")

    def _check_coverage(self) -> None:
        for block in self.fields.blocks:
            self._blocks.setdefault(block.global_layer, []).append(block)
        for index, (layer, policy) in enumerate(zip(self.layers, self.layout, strict=True)):
            blocks, tokens = self.blocks_of(index), self.tokens_of(index)
            if policy.attention is None or tokens == 0:
                continue  # a block of such a layer was refused above
            where = f"$.blocks: layer {layer}"
            _need(bool(blocks), where, "has none")
            window = policy.attention.window
            latest = 0 if window is None else max(0, tokens - (window - 1))
            start = blocks[0].start
            _need(start <= latest, where, f"starts at {start}, but {latest} is needed")
            for before, after in pairwise(blocks):
                _need(before.end == after.start, where, f"{before.end}..{after.start} is missing")
            _need(blocks[-1].end == tokens, where, f"ends at {blocks[-1].end} of {tokens}")


def decode_manifest(raw: bytes | bytearray) -> Manifest:
    """A manifest from its JSON; the version is looked at before anything else.

    Raises:
        UnsupportedError: another schema version.
        CorruptionError: it is no JSON, lacks a field, or breaks a rule; the message says where.
    """
    version = schema_version(raw)
    if type(version) is not int:
        _fail("$.schema_version", "expected an integer")
    if version != SCHEMA:
        raise UnsupportedError(f"schema version {version}; only {SCHEMA} can be read")
    try:
        fields = msgspec.json.decode(raw, type=Fields)
    except RecursionError:
        raise CorruptionError("manifest.json: nested too deeply") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptionError(f"manifest.json: {error}") from None
    return Manifest(fields)


def schema_version(raw: bytes | bytearray) -> Any:
    """What a manifest says of itself; None if nothing.

    Raises:
        CorruptionError: it is no JSON object.
    """
    try:
        return msgspec.json.decode(raw, type=_Version).schema_version
    except RecursionError:
        raise CorruptionError("manifest.json: nested too deeply") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptionError(f"manifest.json: {error}") from None


def attention_shapes(
    policy: LayerCachePolicy, batch: int, tokens: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the two arrays of a block of ``tokens`` positions.

    A layer of keys alone has a second array of one zero for each key: safetensors holds no array
    without elements.
    """
    parts = [part for part in policy.components() if part.stable_name().startswith("attention.")]
    shapes = [tuple(axis.resolve(batch, tokens) for axis in part.shape) for part in parts]
    return shapes[0], shapes[1] if len(shapes) > 1 else (*shapes[0][:-1], 1)


def prefix_sha256(tokens: ArrayLike) -> str:
    """Hex SHA-256 of token ids as little-endian u32, without length or separator.

    >>> prefix_sha256([7, 8])
    '1cfabff28e4788390030eddd710ec196f96ce7f238232080522f0d1e6a70024e'
    """
    return hashlib.sha256(as_tokens(tokens).astype("<i4").tobytes()).hexdigest()


def architecture_fingerprint(family: str, fields: Mapping[str, object]) -> str:
    """What published prompt caches call the architecture of a model.

    Args:
        family: name of the model's family.
        fields: what tells one architecture of it from another; values count as their text.

    >>> architecture_fingerprint("llama", {"layers": 32, "hidden_size": 4096})[:23]
    'sha256:9ee0b30ea8687d04'
    """
    pairs = sorted((as_bytes(key, "fields"), str(value).encode()) for key, value in fields.items())
    digest = hashlib.sha256()
    parts = (_ARCHITECTURE_DOMAIN.encode(), as_bytes(family, "family"))
    for part in (*parts, *(part for pair in pairs for part in pair)):
        digest.update(struct.pack("<Q", len(part)) + part)
    return f"sha256:{digest.hexdigest()}"


def _fail(where: str, message: str) -> NoReturn:
    raise CorruptionError(f"manifest.json: {where}: {message}")


def _need(holds: bool, where: str, message: str) -> None:
    if not holds:
        _fail(where, message)


def _need_hash(text: str, where: str) -> None:
    _need(_HEX_64.fullmatch(text) is not None, where, "is no SHA-256 in lower-case hex")


def _need_safe(path: str, where: str) -> None:
    """A relative path of plain names: whoever follows it stays inside."""
    names = path.split("/")
    safe = not {"", ".", ".."} & set(names) and not {"\\", "\0"} & set(path)
    _need(safe, where, f"{path!r} is no relative path of plain names")
