"""What lies in a published prompt cache, without the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvcache.errors import CorruptionError, KVCacheError
from kvcache.published.files import read_newest, shard_of_block, shard_of_tensor
from kvcache.published.manifest import Manifest, decode_manifest, schema_version

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from kvcache.published.files import Generation, Shard

_DETAILS = (
    "model_family",
    "effective_model_type",
    "checkpoint_fingerprint",
    "prefix_content_fingerprint",
    "architecture_fingerprint",
    "application_namespace",
    "prefix_sha256",
    "batch_size",
    "block_size_tokens",
    "sink_tokens",
)


@dataclass(slots=True)
class Examined:
    """Facts, files and damage; the fields of a `kvcache.StoredReport`."""

    details: dict[str, Any]
    columns: tuple[str, ...] = ("file", "holds", "bytes")
    files: list[tuple[str, ...]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def is_published(path: str | os.PathLike[str]) -> bool:
    """Whether the manifest is one of the published line, of any version."""
    try:
        return read_newest(path, lambda files: schema_version(files.manifest()) is not None)
    except KVCacheError:
        return False


def examine(path: str | os.PathLike[str], *, deep: bool) -> Examined:
    """Say what a published prompt cache holds; ``deep`` reads every byte of it.

    Raises:
        CorruptionError: its manifest is damaged. UnsupportedError: it is of another schema.
        KVCacheIOError: the system refused.
    """
    return read_newest(
        path, lambda files: _examine(files, deep=deep), lambda found: not found.problems
    )


def _examine(files: Generation, *, deep: bool) -> Examined:
    manifest = decode_manifest(files.manifest())
    fields = manifest.fields
    found = Examined(
        {
            "generation": files.name,
            "tokens": fields.total_prefix_tokens,
            "layers": f"{fields.global_layer_start}..{fields.global_layer_end}"
            f" of {fields.layer_count}",
            "segments": manifest.segments,
            **{name: getattr(fields, name) for name in _DETAILS},
        }
    )
    for axis, pair in fields.topology.axes().items():
        if pair is not None:
            found.details[axis] = f"rank {pair[1]} of {pair[0]}"
    total = 0
    for holds, shard in _shards(manifest):
        try:
            size = files.file_bytes(shard)
            if deep:
                files.check(shard)
        except CorruptionError as error:
            found.problems.append(str(error))
            size = 0
        total += size
        found.files.append((shard.path, holds, str(size)))
    found.details["bytes"] = total
    return found


def _shards(manifest: Manifest) -> Iterator[tuple[str, Shard]]:
    for block in manifest.fields.blocks:
        holds = f"layer {block.global_layer}, positions {block.start}..{block.end}"
        yield holds, shard_of_block(block)
    stored = zip(manifest.tensors, manifest.fields.state_tensors, strict=True)
    for (layer, role), tensor in stored:
        yield f"layer {layer}, {role.stable_name()}", shard_of_tensor(tensor)
