"""`kvcache replay --disk`: a replay goes on with what an earlier one left."""

import json

import pytest


def test_a_restarted_replay_restores_hits_without_a_wrong_byte(run, tmp_path):
    disk = tmp_path / "tier"
    first = json.loads(run("--json", "--requests", 8, "--disk", disk)[1])
    code, out, _ = run("--json", "--requests", 8, "--disk", disk)
    again = json.loads(out)
    assert code == 0
    assert again["mismatches"] == 0
    assert again["verified_bytes"] == again["restored_bytes"] > first["restored_bytes"]
    assert again["disk"]["fetched_tokens"] > 0
    assert again["disk"]["damaged_records"] == again["disk"]["dropped_records"] == 0
    assert again["reused_tokens"] > first["reused_tokens"]
    assert "tokens from disk" in run("--requests", 8, "--disk", disk)[1]


@pytest.mark.parametrize("extra", [("--bytes", "none"), ("--policy", "lru,gdsf")])
def test_a_tier_needs_one_replay_with_bytes(refused, tmp_path, extra):
    assert "--disk needs" in refused("--disk", tmp_path / "tier", *extra)


def test_a_cap_that_is_too_small_is_refused(refused, tmp_path):
    assert "max_bytes" in refused("--disk", tmp_path / "tier", "--disk-bytes", "1KiB")
