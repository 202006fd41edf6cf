"""Which weights computed a state: a name that two models share only if they compute the same."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
import transformers

from kvcache.errors import InvalidArgumentError

__all__ = ["config_identity", "model_identity", "weights_mark"]

_SAMPLES = 64


def config_identity(config: Any) -> str:
    """A configuration without what changes no number: paths, versions, generation defaults."""
    shown = config.to_dict()
    shown.pop("transformers_version", None)
    return json.dumps(shown, sort_keys=True, default=str)


def model_identity(model: Any) -> str:
    """SHA-256 over what the state of a model depends on, in a few milliseconds.

    The configuration with its name and revision, the version of transformers, the active adapters,
    and of each parameter and buffer its name, shape, element type, and 64 elements spread evenly
    over it. Two models that differ only in other elements, under one name and revision, are not
    told apart: give those ``weights=`` names.

    Raises:
        InvalidArgumentError: a parameter lies on disk, or nowhere.
    """
    digest = hashlib.sha256()

    def add(text: str) -> None:
        data = text.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)

    add(transformers.__version__)
    add(config_identity(model.config))
    add(str(getattr(model.config, "_name_or_path", "")))
    add(str(getattr(model.config, "_commit_hash", "")))
    add(repr(_adapters(model)))
    for name, tensor in _tensors(model):
        if tensor.is_meta:
            raise InvalidArgumentError(
                f"weights: {name} is not in memory, so it tells nothing; name the weights"
            )
        add(f"{name} {tuple(tensor.shape)} {tensor.dtype}")
        digest.update(_sample(tensor))
    return digest.hexdigest()


def weights_mark(model: Any) -> int:
    """What changes when a parameter is replaced, or written in place but by ``.data.copy_``."""
    versions = [(id(each), each.data_ptr(), _version(each)) for each in model.parameters()]
    return hash((tuple(versions), repr(_adapters(model))))


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else int(tensor._version)


def _tensors(model: Any) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _adapters(model: Any) -> Any:
    """Names of the adapters that are on, for models with any."""
    if not getattr(model, "_hf_peft_config_loaded", False):
        return None
    return model.active_adapters()


def _sample(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach()
    if flat.numel() == 0:
        return b""
    flat = flat.reshape(-1) if flat.is_contiguous() else flat.flatten()
    step = max(1, flat.numel() // _SAMPLES)
    chosen = flat[::step][:_SAMPLES].cpu().contiguous()
    return bytes(chosen.view(torch.uint8).numpy().tobytes())
