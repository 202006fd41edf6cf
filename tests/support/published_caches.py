"""Prompt caches of the published line, schema 8, written for tests: their state is made up."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kvcache
from kvcache import LayerCachePolicy, LayerSchedule, StateTensorPolicy
from kvcache.policy.tensors import StateResidencyClass as Residency
from kvcache.policy.tensors import StateTensorDimension as Dim
from kvcache.policy.tensors import StateTensorDtype, StateTensorRole
from kvcache.published import prefix_sha256

Array = NDArray[Any]
NAME = "generation-1790000000000000000"
TAGS = {
    "Float16": ("F16", "<f2"),
    "Bfloat16": ("BF16", "<u2"),
    "Float32": ("F32", "<f4"),
    "Float64": ("F64", "<f8"),
    "Int32": ("I32", "<i4"),
    "Uint32": ("U32", "<u4"),
    "Int8": ("I8", "|i1"),
}
FULL, WINDOW = kvcache.AttentionPolicy.full(), kvcache.AttentionPolicy.sliding


def tensor(role: StateTensorRole, *shape: Any, dtype: str = "floating") -> StateTensorPolicy:
    """A required state tensor of each row of the batch."""
    axes = (Dim.batch(), *(Dim.fixed(axis) if isinstance(axis, int) else axis for axis in shape))
    kind = StateTensorDtype(dtype)
    return StateTensorPolicy.new_with_residency(role, axes, kind, role.required_residency)


RECURRENT = tensor(StateTensorRole.recurrent(), 2, 3, 4, dtype="float32")
CONVOLUTIONS = [tensor(StateTensorRole.convolution(slot), 3, 5 + slot) for slot in range(2)]
POSITION = StateTensorPolicy.new_with_residency(
    StateTensorRole.position_delta(),
    (Dim.scalar(),),
    StateTensorDtype.INT32,
    Residency.ALWAYS_DEVICE_MUTABLE,
)
PREFIX = tensor(StateTensorRole.prefix_embedding(), Dim.prefix_tokens(), 6).optional()
POLICY = LayerCachePolicy
LAYOUTS: dict[str, list[LayerCachePolicy]] = {
    "full": [POLICY.key_value(FULL, 2, 8), POLICY.key_value(FULL, 1, 4)],
    "sliding": [POLICY.key_value(FULL, 2, 8), POLICY.key_value(WINDOW(7), 2, 8)],
    "only sliding": [POLICY.key_value(WINDOW(9), 2, 8), POLICY.key_value(WINDOW(4), 2, 8)],
    "window of one": [POLICY.key_value(FULL, 2, 8), POLICY.key_value(WINDOW(1), 2, 8)],
    "key-only": [POLICY.key_only(WINDOW(7), 2, 8), POLICY.key_only(FULL, 1, 8)],
    "mla": [POLICY.compressed_latent_rotary(FULL, 12, 4)] * 2,
    "hybrid": [
        POLICY.fixed_only([*CONVOLUTIONS, RECURRENT]),
        POLICY.no_state(),
        POLICY.key_value(FULL, 2, 8),
        POLICY.key_value_with_fixed_state(WINDOW(7), 2, 8, [CONVOLUTIONS[0], POSITION]),
    ],
    "recurrent": [POLICY.fixed_only([RECURRENT]), POLICY.fixed_only([RECURRENT])],
    "multimodal": [
        POLICY.key_value_with_fixed_state(FULL, 2, 8, [POSITION, PREFIX]),
        POLICY.key_value(FULL, 2, 8),
    ],
}


@dataclass
class Written:
    """What a prompt cache holds.

    Attributes:
        path: its directory.
        layout: policy of each layer.
        tokens: of the prefix.
        rows: ``[batch, positions, heads, width]`` by layer and component, in float64.
        tensors: ``[batch, ...]`` by layer and component, likewise.
    """

    path: Path
    layout: list[LayerCachePolicy]
    tokens: Array
    rows: dict[tuple[int, str], Array] = field(default_factory=dict)
    tensors: dict[tuple[int, str], Array] = field(default_factory=dict)

    @property
    def generation(self) -> Path:
        return self.path / ".generations" / NAME

    @property
    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.generation / "manifest.json").read_text())
        return found

    def edit(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Rewrite the manifest."""
        fields = self.manifest
        change(fields)
        put_manifest(self.generation, fields)

    def shards(self) -> list[Path]:
        return sorted(self.generation.glob("*.safetensors"))


def made_up(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Numbers that every floating element holds exactly, int8 with its scale included."""
    values = rng.integers(-127, 128, shape).astype(np.float64)
    if len(shape) > 1:
        values[..., 0] = 127
    return values


def stored(values: Array, dtype: str) -> Array:
    if dtype == "Bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype("<u2")
    return values.astype(TAGS[dtype][1])


def put_shard(path: Path, arrays: Mapping[str, Array], dtype: str) -> tuple[int, str]:
    """A safetensors file; the size and SHA-256 of its payload."""
    header, payload = {}, b""
    for name, values in arrays.items():
        raw = stored(values, dtype).tobytes()
        offsets = [len(payload), len(payload) + len(raw)]
        shape = list(values.shape)
        header[name] = {"dtype": TAGS[dtype][0], "shape": shape, "data_offsets": offsets}
        payload += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + payload)
    return len(payload), hashlib.sha256(payload).hexdigest()


def put_manifest(generation: Path, fields: Mapping[str, Any]) -> None:
    (generation / "manifest.json").write_text(json.dumps(fields, indent=2) + "\n")


def write(
    path: Path,
    layout: str | list[LayerCachePolicy],
    tokens: Any,
    *,
    seed: int = 0,
    dtype: str = "Float16",
    state_dtype: str = "Float32",
    batch: int = 1,
    block: int = 16,
    starts: Mapping[int, int] | None = None,
    optional: bool = True,
    **fields: Any,
) -> Written:
    """Write one; ``starts`` says from where on a layer's rows are stored, ``fields`` override."""
    policies = LAYOUTS[layout] if isinstance(layout, str) else layout
    written = Written(path, policies, np.asarray(tokens, np.int32))
    written.generation.mkdir(parents=True)
    (path / "CURRENT").write_text(f"{NAME}\n")
    head = header_of(policies, written.tokens, batch, block) | fields
    rng = np.random.default_rng(seed)
    for index, policy in enumerate(policies):
        layer = head["global_layer_start"] + index
        count = len(written.tokens) + head["layer_prefix_offsets"][index]
        begin = (starts or {}).get(layer, 0)
        _put_rows(written, head, rng, (layer, policy, begin, count, batch, block), dtype)
        for each in policy.fixed_state:
            required = each.presence.is_required_for(count)
            if required or (optional and isinstance(each.presence, type(PREFIX.presence))):
                _put_tensor(written, head, rng, (layer, each, batch, count), state_dtype)
    put_manifest(written.generation, head)
    return written


def header_of(
    layout: list[LayerCachePolicy], tokens: Array, batch: int, block: int
) -> dict[str, Any]:
    count = len(layout)
    return {
        "schema_version": 8,
        "model_family": "made-up",
        "effective_model_type": "made_up_decoder",
        "checkpoint_fingerprint": "sha256:weights",
        "prefix_content_fingerprint": "sha256:content",
        "architecture_fingerprint": "sha256:architecture",
        "layer_count": count,
        "global_layer_start": 0,
        "global_layer_end": count,
        "batch_size": batch,
        "layer_layout": LayerSchedule(layout).to_dict(),
        "layer_prefix_offsets": [0] * count,
        "state_segments": [{"id": "state", "layers": {"start": 0, "end": count}}],
        "sink_tokens": 0,
        "topology": {
            "stage": None,
            "shard": None,
            "addressable": None,
            "addressable_state_replicated": True,
        },
        "block_size_tokens": block,
        "total_prefix_tokens": len(tokens),
        "prefix_sha256": prefix_sha256(tokens),
        "application_namespace": None,
        "blocks": [],
        "state_tensors": [],
    }


def _rank_of(topology: Mapping[str, Any]) -> dict[str, Any] | None:
    pairs = {f"{axis}_rank": topology[axis] for axis in ("stage", "shard", "addressable")}
    if not any(pairs.values()):
        return None
    return {name: pair and pair[1] for name, pair in pairs.items()}


def _put_rows(
    written: Written,
    head: dict[str, Any],
    rng: np.random.Generator,
    what: tuple[int, LayerCachePolicy, int, int, int, int],
    dtype: str,
) -> None:
    layer, policy, begin, count, batch, block = what
    parts = [part for part in policy.components() if part.stable_name().startswith("attention.")]
    if not parts or count == 0:
        return
    latent = parts[0].stable_name() == "attention.compressed_latent"
    names = ("latent", "rotary_key") if latent else ("keys", "values")
    for part in parts:
        sizes = [axis.size for axis in part.shape if hasattr(axis, "size")]
        rows = made_up(rng, (batch, count, *([1, *sizes] if latent else sizes)))
        written.rows[layer, part.stable_name()] = rows
    kept = [written.rows[layer, part.stable_name()] for part in parts]
    edges = [begin, *range(begin // block * block + block, count, block), count]
    for start, end in pairwise(edges):
        arrays = [rows[:, start:end].swapaxes(1, 2) for rows in kept]  # [batch, heads, n, width]
        if len(arrays) == 1:
            arrays.append(np.zeros((*arrays[0].shape[:-1], 1)))
        if latent:
            arrays = [array[:, 0] for array in arrays]
        number = len(head["blocks"])
        shard = f"block-{number:08d}.safetensors"
        size, digest = put_shard(
            written.generation / shard, dict(zip(names, arrays, strict=True)), dtype
        )
        head["blocks"].append(
            {
                "global_layer": layer,
                "representation": "compressed_latent_rotary" if latent else "key_value",
                "start": start,
                "end": end,
                "rank": _rank_of(head["topology"]),
                "shard": shard,
                "first_array": names[0],
                "second_array": names[1],
                "first_shape": list(arrays[0].shape),
                "second_shape": list(arrays[1].shape),
                "first_dtype": dtype,
                "second_dtype": dtype,
                "logical_bytes": size,
                "payload_sha256": digest,
            }
        )


def _put_tensor(
    written: Written,
    head: dict[str, Any],
    rng: np.random.Generator,
    what: tuple[int, StateTensorPolicy, int, int],
    dtype: str,
) -> None:
    layer, policy, batch, count = what
    shape = policy.resolved_shape(batch, count)
    values = made_up(rng, shape)
    written.tensors[layer, policy.role.stable_name()] = values
    named = {"float32": "Float32", "int32": "Int32", "uint32": "Uint32"}
    dtype = named.get(policy.dtype.value, dtype)
    number = len(head["state_tensors"])
    shard = f"state-{number:08d}.safetensors"
    size, digest = put_shard(written.generation / shard, {"state": values}, dtype)
    assert size == math.prod(shape) * np.dtype(TAGS[dtype][1]).itemsize
    head["state_tensors"].append(
        {
            "owner": {"layer": layer},
            "role": policy.role.to_dict(),
            "shard": shard,
            "array": "state",
            "shape": list(shape),
            "dtype": dtype,
            "logical_bytes": size,
            "payload_sha256": digest,
        }
    )


def cache_for(
    layout: str | list[LayerCachePolicy],
    *,
    storage: str = "f16",
    block_tokens: int = 4,
    memory: str = "8MiB",
    state_dtype: str = "f32",
    **options: Any,
) -> kvcache.Cache:
    """An empty cache for the state of a layout."""
    policies = LAYOUTS[layout] if isinstance(layout, str) else layout
    declared = kvcache.declare(LayerSchedule(policies), storage=storage, state_dtype=state_dtype)
    plan = kvcache.StatePlan(declared, memory=memory, block_tokens=block_tokens, sequences=4)
    return kvcache.Cache(plan, **options)


def check_hit(
    cache: kvcache.Cache, written: Written, prompt: Any, row: int = 0, **space: Any
) -> int:
    """Open a prompt that begins like the prefix, compare all that was restored, return the hit."""
    with cache.open(np.asarray(prompt, np.int32), **space) as sequence:
        hit = sequence.cached_tokens
        if hit == 0:
            return 0
        for layer in sorted(
            {part.layer for group in cache.plan.groups for part in group.components}
        ):
            parts = cache.plan.paged_components(layer)
            windows = [g.window for g in cache.plan.groups if parts and parts[0] in g.components]
            start = max(0, hit - (windows[0] - 1)) if windows and windows[0] else 0
            for part, got in zip(parts, sequence.read(layer, start, hit, "float32"), strict=False):
                want = written.rows[layer, part.component][row, start:hit]
                np.testing.assert_array_equal(got, want, f"{layer} {part.component} at {hit}")
        for part in cache.plan.fixed:
            values = written.tensors[part.layer, part.name]
            want = values if part.name == "state.position_delta" else values[row]
            got = sequence.state(part.layer, part.name)
            np.testing.assert_array_equal(got, want, f"{part.layer} {part.name}")
    return hit
