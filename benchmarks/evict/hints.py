"""What a caller could tell the price list about the requests of a trace, as files of hints.

    python benchmarks/evict/hints.py TRACE.jsonl FOLDER
    build/bench_evict/bench_evict TRACE.jsonl --hints FOLDER/guess.txt 1000 2000

A hint is a number for each request; 0 says nothing. `turn` and `guess` use only what is known when
a request arrives: its length, how much of it earlier requests had, its turn, and gaps, lengths and
outputs of the request it continues. `guess` is what boosted trees of these make of the chance that
the request is continued, in eight parts; they are fitted on the first half of the trace. `told`
and `told_80` need a caller who knows: whether a later request has the last whole block of this one,
and the same with one answer in five wrong.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

BLOCK, PARTS, ROUNDS, RATE, DEPTH, RIDGE = 512, 16, 200, 0.1, 3, 5.0
CENSORED = 600  # requests before the cut whose continuations come after it


def arrival_facts(trace: list[dict]) -> dict[str, np.ndarray]:
    """Facts of each request that are known when it arrives."""
    latest: dict[int, int] = {}  # the last request with a block
    rows = []
    for number, request in enumerate(trace):
        ids, prompt = request["hash_ids"], request["input_length"]
        known = next((k for k, block in enumerate(ids) if block not in latest), len(ids))
        row = {"known": known, "new": prompt - known * BLOCK, "prompt": prompt, "turn": 0}
        row |= {"gap": -1, "last_gap": -1, "last_output": -1, "last_new": -1, "grown": -1}
        row |= {"whole": -1}
        if known > 1:  # more than the head that all share
            before = latest[ids[known - 1]]
            last, past = trace[before], rows[before]
            row["turn"] = past["turn"] + 1
            row["gap"] = request["timestamp"] - last["timestamp"]
            row["last_gap"] = past["gap"]
            row["last_output"], row["last_new"] = last["output_length"], past["new"]
            row["grown"] = prompt - last["input_length"] - last["output_length"]
            row["whole"] = known == last["input_length"] // BLOCK
        rows.append(row)
        latest.update(dict.fromkeys(ids, number))
    return {key: np.array([row[key] for row in rows]) for key in rows[0]}


def continued(trace: list[dict]) -> np.ndarray:
    """Whether a later request has the last whole block of each."""
    later: set[int] = set()
    answers = np.zeros(len(trace), bool)
    for number in range(len(trace) - 1, -1, -1):
        whole = trace[number]["input_length"] // BLOCK
        answers[number] = whole > 1 and trace[number]["hash_ids"][whole - 1] in later
        later.update(trace[number]["hash_ids"])
    return answers


def split(nodes, bins, known, slope, bend):
    """Each node in two, where that says most about the residuals of `known`."""
    for node in nodes:
        mine = known[node[known]]
        total, weight = slope[mine].sum(), bend[mine].sum() + RIDGE
        best = (0.0, None, 0)
        for column in bins:
            up = np.bincount(column[mine], slope[mine], PARTS + 1).cumsum()
            width = np.bincount(column[mine], bend[mine], PARTS + 1).cumsum()
            rest = np.maximum(weight - RIDGE - width, 0) + RIDGE
            gain = up**2 / (width + RIDGE) + (total - up) ** 2 / rest - total**2 / weight
            if gain.max() > best[0]:
                best = (gain.max(), column, int(gain.argmax()))
        if best[1] is None:
            yield node
        else:
            yield node & (best[1] <= best[2])
            yield node & (best[1] > best[2])


def boosted(facts: dict[str, np.ndarray], answers: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Logistic boosting of small trees over facts in parts of equal size."""
    shares = np.linspace(0, 1, PARTS + 1)[1:-1]
    bins = [
        np.searchsorted(np.unique(np.quantile(x[known], shares)), x, "right")
        for x in facts.values()
    ]
    mean = answers[known].mean()
    score = np.full(answers.size, np.log(mean / (1 - mean)))
    for _ in range(ROUNDS):
        chance = 1 / (1 + np.exp(-score))
        slope, bend = answers - chance, chance * (1 - chance)
        nodes = [np.ones(answers.size, bool)]
        for _ in range(DEPTH):
            nodes = list(split(nodes, bins, known, slope, bend))
        for node in nodes:
            mine = known[node[known]]
            score[node] += RATE * slope[mine].sum() / (bend[mine].sum() + RIDGE)
    return 1 / (1 + np.exp(-score))


def area(chance: np.ndarray, answers: np.ndarray) -> float:
    """Of the ROC curve."""
    rank = np.argsort(np.argsort(chance))[answers]
    return float((rank.mean() - (answers.sum() - 1) / 2) / (~answers).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    with arguments.trace.open() as lines:
        trace = [json.loads(line) for line in lines]
    facts, answers = arrival_facts(trace), continued(trace)
    half = len(trace) // 2
    chance = boosted(facts, answers, np.arange(max(1, half - CENSORED)))
    print(f"second half: area under ROC {area(chance[half:], answers[half:]):.3f}")
    wrong = np.random.default_rng(1).random(len(trace)) < 0.2
    parts = np.quantile(chance[:half], np.linspace(0, 1, 9)[1:-1])
    hints = {
        "turn": 1 + np.minimum(facts["turn"], 6),
        "guess": 1 + np.searchsorted(parts, chance),
        "told": 1 + answers,
        "told_80": 1 + (answers ^ wrong),
    }
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, values in hints.items():
        np.savetxt(arguments.folder / f"{name}.txt", values, fmt="%d")


if __name__ == "__main__":
    main()
