"""From the configuration of a model to the state that its decoder keeps, layer by layer.

    >>> from kvcache.models import from_config
    >>> model = from_config({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 256,
    ...                      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64})
    >>> model.schedule[0].num_key_value_heads
    2

Pure Python: neither numpy nor the compiled core is loaded.
"""

from __future__ import annotations

from kvcache.models.model import Model
from kvcache.models.reading import from_config
from kvcache.models.registry import known_types, register

__all__ = ["Model", "from_config", "known_types", "register"]
