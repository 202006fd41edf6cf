"""The text that Prometheus scrapes, read strictly."""

from __future__ import annotations

import re

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_PAIR = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"(?:,(?!$)|$)')
Samples = dict[tuple[tuple[str, str], ...], int]


def parse(text: str) -> dict[str, tuple[str, str, Samples]]:
    """Metric -> type, help, samples by labels. Anything out of order is an error."""
    assert text.endswith("\n")
    metrics: dict[str, tuple[str, str, Samples]] = {}
    helped = name = ""
    for line in text[:-1].split("\n"):
        if found := re.fullmatch(rf"# HELP ({_NAME}) (\S.*)", line):
            helped, summary = found[1], found[2]
            assert helped not in metrics
            assert "\\" not in summary
        elif found := re.fullmatch(rf"# TYPE ({_NAME}) (counter|gauge)", line):
            name = found[1]
            assert name == helped
            metrics[name] = (found[2], summary, {})
        else:
            found = re.fullmatch(rf"({_NAME})(?:\{{(.+)\}})? (0|[1-9][0-9]*)", line)
            assert found is not None, line
            assert found[1] == name, line
            pairs, rest = [], found[2] or ""
            while rest:
                pair = _PAIR.match(rest)
                assert pair is not None, line
                unescaped = re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), pair[2])
                pairs.append((pair[1], unescaped))
                rest = rest[pair.end() :]
            assert len({label for label, _ in pairs}) == len(pairs)
            samples = metrics[name][2]
            assert tuple(pairs) not in samples, line
            samples[tuple(pairs)] = int(found[3])
    return metrics
