"""Which object of a configuration describes the decoder, and which ``model_type`` it has."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvcache.capability import InputModalities
from kvcache.errors import UnsupportedError
from kvcache.models.fields import shown
from kvcache.models.registry import find, reads_whole, suggestions, why_refused

if TYPE_CHECKING:
    from kvcache.errors import KVCacheError
    from kvcache.models.fields import Fields
    from kvcache.models.registry import Family

__all__ = ["find_decoder", "has_media", "modalities"]

# Where multimodal configurations keep that of their language model, in order of search.
_SECTIONS = (
    "text_config",
    "language_config",
    "llm_config",
    "thinker_config",
    "text_model_config",
    "language_model_config",
    "lm_config",
    "decoder",
    "decoder_config",
    "transformer_layer_config",
)
_IMAGES = (
    "vision_config",
    "vision_tower",
    "mm_vision_tower",
    "vision_encoder",
    "img_processor",
    "embd_layer",
    "visual",
)
_SOUND = ("audio_config", "speech_config", "audio_encoder_config", "sound_config")
_VIDEO = ("video_token_id", "video_token_index", "video_preprocessor_config")
_DEPTH = 4
_LONGEST_NAME = 100
_HEAD = re.compile(r"(For[A-Z]\w*|LMHeadModel\w*|Model|LM)$")


def find_decoder(f: Fields, model_type: str | None) -> tuple[Fields, str, Family]:
    """The object that describes the decoder, its model type, and what reads it.

    Args:
        f: the outermost object.
        model_type: read the decoder as this type, whatever the configuration says.

    Raises:
        UnsupportedError: the model type is not known. InvalidArgumentError: there is none.
    """
    outer = _model_type(f)
    inner = f
    for _ in range(_DEPTH):
        if outer is not None and reads_whole(outer):
            break
        section = next((s for name in _SECTIONS if (s := inner.section(name)) is not None), None)
        if section is None:
            break
        inner = section
    stated = model_type or (_model_type(inner) if inner is not f else outer)
    if stated is None and outer is not None:
        stated = f"{outer}_text" if find(f"{outer}_text") else outer
        inner.note("model_type", f"absent, taken as {shown(stated)}")
    if stated is None:
        raise f.error("model_type", "expected the name of a model type, but the field is absent")
    family = find(stated)
    if family is None:
        raise _unknown(inner, stated)
    return inner, stated, family


def _model_type(f: Fields) -> str | None:
    stated = f.text("model_type")
    if stated:
        return stated
    names = f.array("architectures") or []
    for name in names:
        guess = _from_architecture(name) if isinstance(name, str) else None
        if guess is not None:
            f.note("model_type", f"absent, taken as {shown(guess)} from architectures")
            return guess
    if f.has("ssm_cfg"):
        f.note("model_type", "absent, taken as mamba_ssm, since there is an ssm_cfg")
        return "mamba_ssm"
    return None


def _from_architecture(name: str) -> str | None:
    """The model type of a class name such as ``Qwen2ForCausalLM``, or None."""
    stem = _HEAD.sub("", name[:_LONGEST_NAME])
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()
    for candidate in (snake, snake.replace("_", ""), stem.lower()):
        if find(candidate) is not None:
            return candidate
    return None


def _unknown(f: Fields, model_type: str) -> KVCacheError:
    refused = why_refused(model_type)
    if refused is not None:
        return UnsupportedError(
            f"{f.source}: {f.where('model_type')}: {shown(model_type)} is not supported: {refused}"
        )
    near = suggestions(model_type)
    hint = f"; similar: {', '.join(near)}" if near else ""
    return UnsupportedError(
        f"{f.source}: {f.where('model_type')}: unknown model_type {shown(model_type)}{hint}; "
        'to read it as a known family pass model_type="..."'
    )


def modalities(f: Fields) -> InputModalities:
    """What the model takes beside text, by the sections that describe it."""
    sections = [f, *(s for name in _SECTIONS if (s := f.section(name)) is not None)]
    image, audio, video = (
        any(section.has(*names) for section in sections) for names in (_IMAGES, _SOUND, _VIDEO)
    )
    return InputModalities(text=True, image=image, audio=audio, video=image and video)


def has_media(f: Fields) -> bool:
    """Whether the model takes images or audio beside text."""
    found = modalities(f)
    return found.image or found.audio
