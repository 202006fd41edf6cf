"""What the planner says about a published figure.

`predict` maps the vocabulary of published figures (model, settings, kind, unit) onto the planner.
It sees no published value. Models whose configuration is not at hand are read from
``public_models.json``, the sizes their makers publish.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from kvcache.enums import DType, StateKind, VerifyRule
from kvcache.models import Model, from_config
from kvcache.planner import declare_model, parse_format
from kvcache.planner.engines import Deployment, engine_report, llama_cpp, vllm
from kvcache.planner.engines.base import attention, pool_bytes, recurrent, slot_bytes, with_state
from kvcache.state import StateDecl
from kvcache.terms import max_tokens

GIB = 2**30
_UNITS = {
    "gb(gib)": GIB,
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
}
_LLAMA = ("llama", "llama.cpp", "llama-server", "lmstudio", "ollama")
_ALL_TAPS = ("openvino", "marconi", "transformers")  # keep `kernel` taps, not one less
_GPU_GIB = {"A100-40": 39.49, "A100-80": 79.25, "H100": 79.11, "RTX4090": 23.52, "RTX5090": 31.36}


def corpus() -> Path:
    """The folder of configurations and published figures."""
    default = Path(__file__).resolve().parents[3] / "shared" / "corpus"
    return Path(os.environ.get("KVCACHE_CORPUS", default))


def configs() -> Path:
    """The folder of configurations."""
    return Path(os.environ.get("KVCACHE_CONFIGS", corpus() / "configs"))


def predict(record: dict[str, Any]) -> float:
    """The figure of ``record``, in its unit, as the planner computes it.

    Args:
        record: model, config, settings, unit and kind of a published figure.
    """
    job = Figure(record)
    value = getattr(job, record["kind"])()
    return float(value) / _UNITS.get(record["unit"].split("/")[0].lower(), 1)


class Figure:
    """One published figure: the model as it was served, and a method for each kind."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.settings: dict[str, Any] = record.get("settings") or {}
        self.name: str = record["model"]
        self.record_kind: str = record["kind"]
        self.engine: str = str(self.settings.get("engine", "")).lower()
        self.raw = configuration(record)
        self.tp = int(self.settings.get("tp", 1))
        expand = self.settings.get("mla") == 0 or "decompressed" in self.name.lower()
        self.model: Model = from_config(self.raw, tp=self.tp, expand_latent=expand)

    # -- what was set --------------------------------------------------------------------------

    @property
    def is_llama(self) -> bool:
        return any(name in self.engine for name in _LLAMA) or (
            not self.engine and "n_ctx" in self.settings and "slots" in self.settings
        )

    @property
    def drafts(self) -> int:
        asked = re.search(r"mtp[ -]?(\d+)", self.name.lower())
        if asked:
            return int(asked[1])
        return 1 if self.settings.get("mtp_layer") else 0

    def format(self, *, state: bool = False) -> Any:
        """Storage of attention state: ``kv``, ``k`` and ``v``, else what the checkpoint asks."""
        asked = self.settings.get("kv")
        if asked is None and "k" in self.settings:
            asked = f"{self.settings['k']}/{self.settings.get('v', self.settings['k'])}"
        if asked is None and not state:
            asked = self.settings.get("dtype")
        if asked is None and ("vllm" in self.engine or "sglang" in self.engine):
            # NVFP4 checkpoints ask for keys and values in fp8.
            asked = self.model.cache_dtype or ("fp8" if "NVFP4" in self.name else "bf16")
        return parse_format(str(asked or "f16").split()[0])

    def deployment(self, **changes: Any) -> Deployment:
        """How it was served, as far as engines tell."""
        settings = self.settings
        tokens = settings.get("n_ctx") or settings.get("max_model_len") or settings.get("tokens")
        found = {
            "tokens": int(tokens or self.model.max_context or 4096),
            "sequences": int(self.sequences),
            "format": self.format(),
            "memory_bytes": self.memory(),
            "drafts": self.drafts,
            "state_dtype": self.state_dtype(),
            "block_tokens": settings.get("block"),
            "ubatch": int(settings.get("n_ubatch", 512)),
            "unified": bool(settings.get("kv_unified", True)),
            "full_windows": settings.get("swa_saving") is False,
            "flash_attention": "fa=off" not in self.engine,
            "dcp": int(settings.get("dcp", 1)),
        }
        return Deployment(**{**found, **changes})

    @property
    def sequences(self) -> int:
        for name in ("slots", "seqs", "batch"):
            if name in self.settings:
                return int(self.settings[name])
        return 1

    def state_dtype(self) -> DType | None:
        """vLLM keeps a recurrence in the model's type unless the configuration says otherwise."""
        text = json.dumps(self.raw)
        stated = "mamba_ssm_dtype" in text or "mamba_ssm_cache_dtype" in text
        delta = "kimi" in self.model.model_type or "glm5_next" in self.model.model_type
        return None if stated or delta else DType.BF16

    def memory(self) -> int | None:
        """Bytes for the cache on one rank."""
        for name in ("available_kv_GiB", "pool_GiB"):
            if name in self.settings:
                return int(float(self.settings[name]) * GIB)
        if "gpu" not in self.settings:
            return None
        gpu = str(self.settings["gpu"]).split("x ")[-1].replace(" ", "")
        weights = re.search(r"[\d.]+(?= GiB)", str(self.settings.get("weights", "")))
        free = _GPU_GIB[gpu] * float(self.settings.get("util", 0.9))
        return int((free - (float(weights[0]) if weights else 0)) * GIB)

    # -- which state ---------------------------------------------------------------------------

    def selected(self, decls: list[StateDecl]) -> list[StateDecl]:
        """The declarations of the layers that the figure is about."""
        part = f"{self.settings.get('part', '')} {self.settings.get('layers', '')}"
        if "non-SWA" in part or "full layers" in part or "growth" in self.settings:
            decls = [decl for decl in decls if not decl.window]
        elif "SWA" in part:
            decls = [decl for decl in decls if decl.window]
        # Planners of plain latents leave the index out; llama.cpp prints it as a buffer of its own.
        apart = "kaito" in self.engine or self.is_llama
        if not self.settings.get("indexer", not apart):
            decls = [decl for decl in decls if decl.component != "attention.indexer_keys"]
        return decls

    def growing(self) -> list[StateDecl]:
        """What grows by the position, as the engine stores it."""
        deployment = self.deployment(memory_bytes=None)
        if self.is_llama:
            found = llama_cpp.declarations(self.model, deployment)
        else:
            found = vllm.declarations(self.model, deployment)
        return self.selected(attention(found))

    def fixed(self) -> list[StateDecl]:
        """What does not grow, as the engine stores it."""
        dtype = str(self.settings.get("dtype", "f32"))
        words = {
            "conv": DType.BF16 if "bf16 conv" in dtype else None,
            "ssm": DType.F32 if "f32 ssm" in dtype else None,
        }
        plain = None if words["conv"] or words["ssm"] else _dtype(dtype)
        convolution, recurrence = words["conv"] or plain, words["ssm"] or plain
        taps = 0
        decls = recurrent(declare_model(self.model, parse_format("f16"), drafts=False))
        if self.engine == "imp":  # stores all taps of a convolution, and states in 16 bits
            convolution, recurrence, taps = DType.F32, DType.BF16, 1
        elif any(name in self.engine for name in _ALL_TAPS):
            taps = 1
        if "conv_window" in self.settings:
            kept = next(d.shape[0] for d in decls if d.verify is VerifyRule.CONV_STEPS)
            taps = int(self.settings["conv_window"]) - kept
        decls = with_state(
            decls, recurrent_dtype=recurrence, convolution_dtype=convolution, more_taps=taps
        )
        if "KDA" in f"{self.settings.get('layers', '')} {self.settings.get('per', '')}":
            # A figure of one type is of the tensors that are kept in that type.
            rule = VerifyRule.CONV_STEPS if dtype == "bf16" else VerifyRule.H_STEPS
            if dtype in ("bf16", "fp32"):
                decls = [decl for decl in decls if decl.verify is rule]
        return decls

    # -- kinds ---------------------------------------------------------------------------------

    def per_token(self) -> float:
        """Bytes that one more position adds while no window is full."""
        decls = self.growing()
        total = sum(pool_bytes([d], d.record_tokens) / d.record_tokens for d in decls)
        one_layer = self.record_kind == "per_token" and "layer" in str(self.settings.get("per"))
        return total / len({decl.layer for decl in decls}) if one_layer and decls else total

    def per_layer(self) -> float:
        """The same, of one layer; of fixed state where nothing grows."""
        decls = self.growing()
        if not decls or "KDA" in str(self.settings.get("per", "")):
            return self.state()
        return self.per_token() / len({decl.layer for decl in decls})

    def per_block(self) -> float:
        """The same, of one block."""
        block = self.settings.get("block_tokens") or self.settings.get("block", 16)
        return self.per_token() * int(block)

    def state(self) -> float:
        """Bytes of fixed-size state."""
        decls = self.fixed()
        copies = self.sequences * (1 + int(self.settings.get("rs_seq", 0)))
        if "state" in self.settings:
            shape = tuple(int(size) for size in re.findall(r"\d+", str(self.settings["state"])))
            matching = [replace(decl, shape=shape) for decl in decls if len(decl.shape) > 2]
            decls = matching or decls
        total = slot_bytes(decls, copies)
        if "per" in self.settings:
            total //= len({decl.layer for decl in decls})
        return total

    def total(self) -> float:
        """Bytes of the attention cache."""
        decls = self.growing()
        if "sglang" in self.engine:
            # Keys and values are two buffers, each printed with two digits.
            report = engine_report("sglang", self.model, self.deployment(sequences=1))
            rows = [part.bytes for part in report.allocations if part.unit == "rows"]
            return sum(round(size / GIB, 2) for size in rows) * GIB
        if "swa_rows" in self.settings or "n_ctx" in self.settings or self.is_llama:
            return self._cells(decls)
        deployment = self.deployment()
        if "policy" in self.settings:
            full = [pool_bytes([d], _retained(d, deployment.tokens)) for d in decls]
            return sum(full) * self.sequences
        return pool_bytes(decls, deployment.tokens, pools=self.sequences)

    def _cells(self, decls: list[StateDecl]) -> float:
        settings = self.settings
        window = settings.get("n_swa")
        # Slots of a server share its context; streams in a log line have one each.
        deployment = self.deployment()
        if "slots" not in settings and not deployment.unified:
            tokens = int(settings.get("n_ctx", 1)) * deployment.sequences
            deployment = replace(deployment, tokens=tokens)
        cells = int(settings.get("n_ctx", 1))
        if self.is_llama:
            cells = llama_cpp.context_cells(deployment)
        full = deployment.full_windows or ("ik_llama" in self.engine and "n_swa" not in settings)
        total = 0
        for decl in decls:
            size = cells
            if "cells" in settings:
                size = int(settings["cells"])
            elif decl.window and "swa_rows" in settings:
                size = int(settings["swa_rows"])
            elif decl.window and "cells_swa" in settings:
                size = int(settings["cells_swa"])
            elif decl.window and not full:
                bound = cells if "n_ctx" in settings else 2**40
                size = llama_cpp.window_cells(int(window or decl.window), deployment, bound)
            total += pool_bytes([decl], size, pools=llama_cpp.streams(deployment))
        if settings.get("mla") == 1:  # the latent once more, transposed for the values
            values = parse_format(settings.get("v", "f16"))
            again = [
                values.encode(decl)
                for decl in attention(declare_model(self.model, parse_format("f16")))
                if decl.component == "attention.compressed_latent"
            ]
            total += pool_bytes(again, cells)
        return total

    def capacity(self) -> float:
        """Tokens that fit, as the engine prints them."""
        if "available" in self.settings:
            blocks, size = re.findall(r"\d+", str(self.settings["available"]))[:2]
            return int(blocks) * int(size)
        deployment = self.deployment()
        memory = deployment.memory_bytes
        if "before" in self.settings:
            return self._regrouped(deployment)
        if memory is None:
            raise ValueError(f"{self.name}: no memory size in {self.settings}")
        report = engine_report("vllm", self.model, deployment)
        tokens = report.capacity_tokens
        if "vllm" not in self.engine:
            tokens = max_tokens(self.growing(), sequences=1, memory_bytes=memory)
        multiple = int(self.settings.get("block_multiple", 1))
        return (tokens or 0) // multiple * multiple

    def _regrouped(self, deployment: Deployment) -> float:
        """The same memory, once priced by position of every layer, then by what windows keep."""
        memory = int(self.settings["before"]) * pool_bytes(self.growing(), 1)
        if "growth" in self.settings:
            every = pool_bytes(attention(vllm.declarations(self.model, deployment)), 1)
            return int(self.settings["before"]) * every / self.per_token()
        one = replace(deployment, memory_bytes=memory)
        concurrency = engine_report("vllm", self.model, one).concurrency
        return int((concurrency or 0) * deployment.tokens)

    def one_request(self) -> float:
        """Bytes that one longest request pins."""
        return engine_report("vllm", self.model, self.deployment(sequences=1)).bytes

    def page(self) -> float:
        """Positions of one block of attention."""
        deployment = self.deployment()
        decls = vllm.declarations(self.model, deployment)
        plain = [d for d in decls if d.record_tokens == 1 and "pooling" not in d.component]
        layout = vllm.page_layout(plain, deployment)
        return max(each.block_tokens for each in layout.types) * deployment.dcp

    def ratio(self) -> float:
        """How much more a cache takes that keeps every position of every layer of the model."""
        if "rs_seq" in self.settings:
            return 1 + int(self.settings["rs_seq"])
        decls = self.growing()
        layers = len({decl.layer for decl in decls})
        tokens = self.settings.get("tokens") or self.settings.get("n_ctx")
        if tokens and any(decl.window for decl in decls):
            kept = sum(pool_bytes([d], _retained(d, int(tokens))) for d in decls)
            return pool_bytes(decls, int(tokens)) / kept
        return self.model.layer_count / max(layers, 1)


# -- models ----------------------------------------------------------------------------------------


def configuration(record: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a record: its file, a public model of that name, a file of that name.

    A file that is of another size than the model's name says is not its configuration.
    """
    wanted = _plain(record["model"])
    public = {_plain(name): config for name, config in public_models().items()}
    begins = [name for name in public if wanted.startswith(name)]
    named = public[max(begins, key=len)] if begins else None
    if record.get("config"):
        stated = json.loads((configs() / record["config"]).read_text())
        if named is None or not _same_family_other_size(stated, named):
            return stated
        return named
    if named is not None:
        return named
    inside = [name for name in public if name in wanted]
    if inside:
        return public[max(inside, key=len)]
    for path in sorted(configs().glob("*.json")):
        if wanted in _plain(path.stem) or _plain(path.stem.split("--")[-1]) in wanted:
            return json.loads(path.read_text())
    raise LookupError(f"{record['model']}: neither a configuration nor a public model of that name")


@cache
def public_models() -> dict[str, dict[str, Any]]:
    """Sizes of public models by name."""
    return json.loads(Path(__file__).with_name("public_models.json").read_text())


def _same_family_other_size(stated: dict[str, Any], named: dict[str, Any]) -> bool:
    return stated.get("model_type") == named["model_type"] and (
        stated.get("num_hidden_layers") not in (None, named["num_hidden_layers"])
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def _dtype(name: str) -> DType:
    return {"bf16": DType.BF16, "fp16": DType.F16, "f16": DType.F16}.get(name, DType.F32)


def _retained(decl: StateDecl, tokens: int) -> int:
    """Positions that stay: all, or those of the window."""
    if decl.kind is StateKind.PAGED_KV and decl.window:
        return min(tokens, decl.window)
    return tokens
