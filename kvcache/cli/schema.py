"""`kvcache schema`: the JSON Schema of the public documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcache.errors import KVCacheIOError
from kvcache.schema import json_schema, public_types

if TYPE_CHECKING:
    import argparse

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Add the command to the `kvcache` parser."""
    parser = subparsers.add_parser(
        "schema",
        help="print or export the JSON Schema of the public documents",
        description="Without a name, list the documents that have a schema.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="e.g. LayerSchedule")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="write NAME.schema.json files there, of every document if none is named",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print or write the schemas; the exit code is 0."""
    if args.out is None and not args.names:
        print("\n".join(public_types()))
        return 0
    schemas = {name: json_schema(name) for name in args.names or public_types()}
    texts = {name: json.dumps(schema, indent=2) + "\n" for name, schema in schemas.items()}
    if args.out is None:
        print("".join(texts.values()), end="")
        return 0
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (args.out / f"{name}.schema.json").write_text(text)
    except OSError as error:
        raise KVCacheIOError(f"{args.out}: cannot write the schemas: {error}") from error
    print(f"{len(texts)} schemas written to {args.out}")
    return 0
