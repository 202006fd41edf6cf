"""Whose states they are: one model in one configuration of its context."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcache._arguments import as_bytes
from kvcache.errors import InvalidArgumentError, KVCacheIOError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ModelFacts", "model_facts"]

_HEAD_BYTES = 1 << 20  # of a GGUF file: its metadata, names, shapes
_PIECES, _PIECE_BYTES = 64, 4096
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.ASCII)
# Of the context's parameters, those that change neither the state nor its form.
_NO_MATTER = frozenset(
    {"n_batch", "n_threads", "n_threads_batch", "no_perf", "offload_kqv", "op_offload"}
)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a cache must know of a model."""

    identity: bytes  #: SHA-256; states of another one are not found
    context: int | None  #: elements of ``input_ids``, if known
    vocabulary: int | None  #: columns of ``scores``, if known
    logits_all: bool | None  #: whether the model keeps scores of each token, if known
    partial_hits: bool  #: whether a state can be cut back to a prefix


def model_facts(
    model: Any, logits_all: bool | None = None, partial_hits: bool | None = None
) -> ModelFacts:
    """What is to be known of a `llama_cpp.Llama`, or of a model that a text names.

    Args:
        model: either of them.
        logits_all: if not None, instead of what the model says.
        partial_hits: likewise.

    Raises:
        InvalidArgumentError: neither of them.
        UnsupportedError: a model with images or sound, whose tokens do not tell its state.
        KVCacheIOError: the file of the model cannot be read.
    """
    facts = _named(model) if isinstance(model, (str, bytes)) else _of_model(model)
    if logits_all is not None:
        facts = replace(facts, logits_all=logits_all)
    if partial_hits is not None:
        facts = replace(facts, partial_hits=partial_hits)
    kept = f"\0logits_all={facts.logits_all}".encode()  # it decides what a state is stored with
    return replace(facts, identity=hashlib.sha256(facts.identity + kept).digest())


def _named(name: str | bytes) -> ModelFacts:
    digest = hashlib.sha256(b"name\0" + as_bytes(name, "model")).digest()
    return ModelFacts(digest, None, None, None, partial_hits=True)


def _of_model(model: Any) -> ModelFacts:
    parameters = getattr(model, "context_params", None)
    if not hasattr(model, "model_path") or not hasattr(parameters, "_fields_"):
        raise InvalidArgumentError(
            "model: expected a llama_cpp.Llama, or a text that names the model and its context,"
            f" got {type(model).__name__}"
        )
    if hasattr(getattr(model, "chat_handler", None), "clip_model_path"):
        raise UnsupportedError(
            "model: its chat handler puts images or sound into the context, which tokens do not"
            " tell apart; use it without a cache"
        )
    return ModelFacts(
        _identity(model),
        int(model.context_params.n_ctx),
        int(model.n_vocab()),
        bool(model._logits_all),
        partial_hits=_can_be_cut(model),
    )


def _identity(model: Any) -> bytes:
    """SHA-256 over what a state depends on, and what its form depends on.

    The version of llama-cpp-python, the file of the model (size, first MiB, and 64 pieces of 4 KiB
    spread evenly), that of its adapter, and the parameters of the context.
    """
    digest = hashlib.sha256(b"model\0")

    def add(value: Any) -> None:
        data = value if isinstance(value, bytes) else repr(value).encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)

    add(getattr(_package(model), "__version__", ""))
    for path in _parts(_path_of(model, "model_path")):
        add(_sample(path, "model_path"))
    if getattr(model, "lora_path", None):
        add(_sample(_path_of(model, "lora_path"), "lora_path"))
        add(float(model.lora_scale))
    add(sorted((getattr(model, "kv_overrides", None) or {}).items()))
    parameters = model.context_params
    for name, *_ in parameters._fields_:
        value = getattr(parameters, name)
        if name not in _NO_MATTER and isinstance(value, (bool, int, float)):
            add(name)
            add(value)
    return digest.digest()


def _path_of(model: Any, name: str) -> Path:
    try:
        return Path(os.fsdecode(getattr(model, name)))
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"model: its {name} is no path: {getattr(model, name)!r}"
        ) from None


def _parts(path: Path) -> Iterator[Path]:
    """All files of a model, of which llama.cpp is given the first."""
    found = _PART.search(path.name)
    if found is None:
        yield path
        return
    stem = path.name[: found.start()]
    for i in range(1, int(found[2]) + 1):
        yield path.with_name(f"{stem}-{i:05}-of-{found[2]}.gguf")


def _sample(path: Path, name: str) -> bytes:
    """A digest of a file's size and some of its bytes, in a few milliseconds."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise OSError(errno.EINVAL, "not a plain file", str(path))
            size = info.st_size
            digest.update(size.to_bytes(8, "little"))
            digest.update(file.read(_HEAD_BYTES))
            for piece in range(_PIECES):
                file.seek(max(0, size - _PIECE_BYTES) * piece // (_PIECES - 1))
                digest.update(file.read(_PIECE_BYTES))
    except (OSError, ValueError) as error:
        raise KVCacheIOError(
            f"{name}: {error}; a text as model= names a model without its file"
        ) from error
    return digest.digest()


def _open_at_once(path: str, flags: int) -> int:
    """A pipe in place of a file must not block."""
    return os.open(path, flags | os.O_NONBLOCK)


def _can_be_cut(model: Any) -> bool:
    """Whether positions at a state's end can be dropped from it.

    Recurrent state goes back nowhere; a cache that holds a window alone has no longer what the
    window before needs, and llama.cpp does not say so.
    """
    if getattr(model, "_is_recurrent", False) or getattr(model, "_is_hybrid", False):
        return False
    if getattr(model.context_params, "swa_full", True):
        return True
    package = _package(model)
    return package is not None and int(package.llama_model_n_swa(model.model)) == 0


def _package(model: Any) -> Any:
    """The package of the engine, which the class of a model may derive from; None for another."""
    for each in type(model).__mro__:
        package = sys.modules.get(each.__module__.partition(".")[0])
        if hasattr(package, "llama_model_n_swa"):
            return package
    return None
