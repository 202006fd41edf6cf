"""Loads kvcache_server with clients that hold conversations, and checks every answer.

    python examples/server/load.py build/server/kvcache_server --clients 64 --seconds 20

The same clients load a server that reuses prefixes, for comparison one that does not, and one that
has a fifth of the memory and promises four times as much as it has, so that it preempts. Each
conversation begins with one of a few preambles; each turn sends all tokens so far and a few new
ones. Afterwards `kvcache_server --check` computes every conversation without any cache, and each
token of each answer must be the one that it picks. Exits with 1 when one is not.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VOCABULARY = 256
PREAMBLES = 4


@dataclass
class Conversation:
    """Tokens of all turns, and which positions the server has answered."""

    tokens: list[int]
    answers: list[tuple[int, int]] = field(default_factory=list)  # [start, stop)


@dataclass
class Load:
    """What the clients of one run saw."""

    seconds: float
    stats: dict[str, int]
    conversations: list[Conversation]
    errors: list[str]
    latencies: list[float]
    resident: list[int]  # MiB of the server, at the start of the load and at its end


class Connection:
    """One request at a time, a line each."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self.file = self.socket.makefile("rwb")

    def ask(self, **request: Any) -> dict[str, Any]:
        self.file.write(json.dumps(request).encode() + b"\n")
        self.file.flush()
        line = self.file.readline()
        if not line:
            raise ConnectionError("the server closed the connection")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self.file.close()
        self.socket.close()


class Client(threading.Thread):
    """Holds one conversation after the other until the time is over."""

    def __init__(self, port: int, number: int, stop_at: float, most_tokens: int) -> None:
        super().__init__(name=f"client {number}")
        self.port, self.stop_at, self.most_tokens = port, stop_at, most_tokens
        self.random = random.Random(number)
        self.conversations: list[Conversation] = []
        self.errors: list[str] = []
        self.latencies: list[float] = []

    def run(self) -> None:
        try:
            connection = Connection(self.port)
            while time.monotonic() < self.stop_at:
                self.converse(connection)
            connection.close()
        except (OSError, ValueError) as error:
            self.errors.append(f"{self.name}: {error}")

    def converse(self, connection: Connection) -> None:
        preamble = random.Random(self.random.randrange(PREAMBLES))
        talk = Conversation([preamble.randrange(VOCABULARY) for _ in range(256)])
        self.conversations.append(talk)
        while len(talk.tokens) < self.most_tokens and time.monotonic() < self.stop_at:
            turn = self.random.randrange(8, 48)
            talk.tokens += [self.random.randrange(VOCABULARY) for _ in range(turn)]
            wanted = self.random.randrange(4, 33)
            start = time.monotonic()
            answer = connection.ask(id=turn, tokens=talk.tokens, max_tokens=wanted)
            self.latencies.append(time.monotonic() - start)
            tokens = answer.get("tokens", [])
            if answer.get("id") != turn or len(tokens) != wanted:
                self.errors.append(f"{self.name}: {answer}")
                return
            talk.answers.append((len(talk.tokens), len(talk.tokens) + wanted))
            talk.tokens += tokens


def resident_mib(pid: int) -> int:
    [kib] = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kib) >> 10


def load(command: list[str], args: argparse.Namespace) -> Load:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().rpartition(":")[2])
            start = time.monotonic()
            clients = [
                Client(port, number, start + args.seconds, args.tokens)
                for number in range(args.clients)
            ]
            for client in clients:
                client.start()
            time.sleep(args.seconds / 4)
            resident = [resident_mib(server.pid)]
            for client in clients:
                client.join()
            seconds = time.monotonic() - start
            resident.append(resident_mib(server.pid))
            connection = Connection(port)
            stats = connection.ask(id=0, stats=1)
            connection.close()
            server.terminate()
            errors = [error for client in clients for error in client.errors]
            if code := server.wait(timeout=60):
                errors.append(f"the server ended with {code}")
        finally:
            server.kill()
    return Load(
        seconds=seconds,
        stats=stats,
        conversations=[talk for client in clients for talk in client.conversations],
        errors=errors,
        latencies=sorted(latency for client in clients for latency in client.latencies),
        resident=resident,
    )


def check(server: str, seed: int, conversations: list[Conversation]) -> tuple[int, list[str]]:
    """Tokens that were checked, and what is wrong."""
    lines = "".join(
        json.dumps({"id": i, "tokens": talk.tokens}) + "\n" for i, talk in enumerate(conversations)
    )
    done = subprocess.run(
        [server, "--check", "--seed", str(seed)],
        input=lines,
        capture_output=True,
        text=True,
        check=True,
    )
    checked, wrong = 0, []
    for line, talk in zip(done.stdout.splitlines(), conversations, strict=True):
        picks = json.loads(line)["tokens"]
        for start, stop in talk.answers:
            checked += stop - start
            if picks[start - 1 : stop - 1] != talk.tokens[start:stop]:
                wrong.append(f"the answer at positions {start}..{stop} of {talk.tokens[:start]}")
    return checked, wrong


def report(name: str, run: Load) -> None:
    stats = run.stats
    share = stats["cached_tokens"] / max(1, stats["prompt_tokens"])
    accepted = stats["accepted_tokens"] / max(1, stats["drafted_tokens"])
    middle = run.latencies[len(run.latencies) // 2] if run.latencies else 0.0
    print(
        f"{name:<16}{stats['answered'] / run.seconds:>8.1f} answers/s "
        f"{stats['output_tokens'] / run.seconds:>9.1f} tokens/s {middle * 1e3:>8.1f} ms median "
        f"{share:>7.1%} of prompts restored  {stats['computed_tokens']:,} rows computed  "
        f"{stats['preemptions']} preemptions  {accepted:.0%} of {stats['drafted_tokens']:,} drafts "
        f"accepted  {run.resident[0]} -> {run.resident[1]} MiB"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("server", help="path of kvcache_server")
    parser.add_argument("--clients", type=int, default=64, help="at once (%(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=10, help="of each of three loads (%(default)s)"
    )
    parser.add_argument("--memory", type=int, default=16 << 20, help="bytes (%(default)s)")
    parser.add_argument("--tokens", type=int, default=800, help="a conversation (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (%(default)s)")
    parser.add_argument("--disk", action="store_true", help="with a disk tier")
    args = parser.parse_args()
    tight = ["--memory", str(args.memory // 5), "--overcommit", "400"]
    with tempfile.TemporaryDirectory() as folder:
        disk = ["--disk", f"{folder}/tier"] if args.disk else []
        command = [args.server, "--memory", str(args.memory), "--seed", str(args.seed)]
        runs = {
            "with reuse": load([*command, *disk], args),
            "without reuse": load([*command, "--no-reuse"], args),
            "short of memory": load([*command, *tight], args),
        }
    failed = False
    for name, run in runs.items():
        report(name, run)
        checked, wrong = check(args.server, args.seed, run.conversations)
        for problem in (run.errors + wrong)[:5]:
            print(f"{name}: {problem}", file=sys.stderr)
        failed = failed or bool(run.errors or wrong) or checked == 0
        print(f"{name:<16}{checked:>8,} tokens checked, {len(wrong)} answers wrong")
    faster, slower, _ = (run.stats["answered"] / run.seconds for run in runs.values())
    print(f"answers with reuse to without: {faster / max(slower, 1e-9):.2f}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
