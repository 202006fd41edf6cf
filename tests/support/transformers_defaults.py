"""Default geometry of the configuration classes of the installed ``transformers``.

Run as a script to write the table that the package ships::

    python tests/support/transformers_defaults.py
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

TABLE = Path(__file__).resolve().parents[2] / "kvcache" / "models" / "class_defaults.json"

# What other fields are derived from; each is tried at other sizes that classes accept.
_NAMES = """
num_hidden_layers n_layer n_layers num_layers hidden_size n_embd d_model
num_attention_heads n_head n_heads num_heads
"""
_SOURCES = _NAMES.split()


def configuration_class(model_type: str) -> Any:
    """The configuration class of a model type, or None."""
    from transformers import CONFIG_MAPPING

    try:
        return CONFIG_MAPPING[model_type]
    except KeyError:
        return None


def default_config(model_type: str) -> dict[str, Any] | None:
    """What ``CONFIG_MAPPING`` makes of a model type without arguments, as JSON holds it."""
    return _dict(configuration_class(model_type))


def _dict(cls: Any, **changes: Any) -> dict[str, Any] | None:
    if cls is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            plain = json.loads(json.dumps(cls(**changes).to_dict(), default=str))
        except Exception:  # a class may refuse to be made without arguments, in its own way
            return None
    return plain if isinstance(plain, dict) else None


def default_geometry(model_type: str, fields: frozenset[str]) -> dict[str, int]:
    """The integers among ``fields`` that the class fills in and does not derive from others."""
    cls = configuration_class(model_type)
    base = _dict(cls)
    if base is None:
        return {}
    found = {
        name: value
        for name, value in base.items()
        if name in fields and isinstance(value, int) and not isinstance(value, bool)
    }
    for name in _SOURCES:
        for other in (2 * found[name], found[name] // 2) if name in found else ():
            changed = _dict(cls, **{name: other})
            if changed is None:
                continue
            found = {
                key: value
                for key, value in found.items()
                if key == name or changed.get(key) == value
            }
            break
    if "kv_lora_rank" in found:  # there head_dim is another name of qk_rope_head_dim
        found.pop("head_dim", None)
    return found


def main() -> None:
    """Write the table."""
    import transformers

    from kvcache.models.defaults import FIELDS
    from kvcache.models.registry import known_types

    rows = {
        model_type: row
        for model_type in known_types()
        if (row := default_geometry(model_type, FIELDS))
    }
    lines = [f'"version": {json.dumps(transformers.__version__)}']
    lines += [
        f"{json.dumps(name)}: {json.dumps(row, sort_keys=True)}" for name, row in rows.items()
    ]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{TABLE}: {len(rows)} model types")


if __name__ == "__main__":
    main()
