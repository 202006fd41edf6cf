"""The exported JSON Schemas accept what is written and refuse what reading refuses."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from kvcache.cli import schema as command
from kvcache.errors import KVCacheIOError, NotFoundError
from kvcache.policy import AttentionPolicy, LayerCachePolicy, LayerSchedule
from kvcache.schema import json_schema, public_types

jsonschema = pytest.importorskip("jsonschema")


def accepts(name: str, data: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(json_schema(name)).is_valid(data))


@pytest.mark.parametrize("name", public_types())
def test_every_public_type_has_a_valid_closed_schema(name: str) -> None:
    schema = json_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    text = json.dumps(schema)
    wanted = {part.split('"')[0] for part in text.split('"$ref": "#/$defs/')[1:]}
    assert wanted <= schema["$defs"].keys()


def test_schedule_schema_follows_the_published_shapes() -> None:
    attention = LayerSchedule([AttentionPolicy.full(), AttentionPolicy.sliding(8)])
    layers = LayerSchedule(
        [
            LayerCachePolicy.no_state(),
            LayerCachePolicy.key_value(AttentionPolicy.full(), 2, 64, value_head_dim=3),
        ]
    )
    assert accepts("LayerSchedule", attention.to_dict())
    assert accepts("LayerSchedule", layers.to_dict())
    for bad in ([], ["full", "no_state"], ["half"], [{"sliding": {"window": 0}}], [{}], {}):
        assert not accepts("LayerSchedule", bad)


def test_tagged_objects_need_their_tag() -> None:
    assert accepts("CacheStateStrategy", {"strategy": "full_kv"})
    assert not accepts("CacheStateStrategy", {"strategy": "half_kv"})
    assert not accepts("CacheStateStrategy", {"strategy": "sliding_kv"})
    assert not accepts("CacheStateStrategy", {})


def test_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(NotFoundError, match="LayerSchedule"):
        json_schema("Layer")


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    return parser.parse_args(["schema", *arguments])


class TestCommand:
    def test_without_a_name_it_lists_documents(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert command.run(parse()) == 0
        assert capsys.readouterr().out.split() == list(public_types())

    def test_it_prints_one_schema(self, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = parse("StateKind")
        assert arguments.run(arguments) == 0
        printed = json.loads(capsys.readouterr().out)
        assert "paged_kv" in json.dumps(printed)

    def test_it_writes_all_schemas(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert command.run(parse("--out", str(tmp_path / "schemas"))) == 0
        written = {path.name for path in (tmp_path / "schemas").iterdir()}
        assert written == {f"{name}.schema.json" for name in public_types()}
        assert str(len(written)) in capsys.readouterr().out

    def test_unwritable_folder_and_unknown_name_are_errors(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(KVCacheIOError, match="file"):
            command.run(parse("StateKind", "--out", str(tmp_path / "file")))
        with pytest.raises(NotFoundError, match="Nothing"):
            command.run(parse("Nothing"))
