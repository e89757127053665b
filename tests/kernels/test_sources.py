"""Every format is recognised by its content; two sources are the same if and only if their sets are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from kernels import instance_fuzz
from kernels.ck.lines import KINDS
from mutate import Damage
from strategies import damages
from tilewise.arch import load_arch
from tilewise.errors import ConfigError, DataError, UsageError
from tilewise.kernels import Pool, Source, compare_sources, filter_fields, load_pool, pool_json, read_source
from tilewise.kernels.ck import ConfHeader, dispatcher_json_text, get_instance_string
from tilewise.ops import Target

SM90, GFX950 = load_arch("sm90"), load_arch("gfx950")
SWEEP = {"variant": "forward", "trait_config": {"pipeline": {"values": ["mem"]}, "tile_m": {"values": [64]}}}
CONF = "".join(f"{line}\n" for line in KINDS.values())
TARGET = Target.parse("grouped_conv_forward_bf16_sm90")


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def read_text(text: str, name: str = "file", arch: Any = GFX950) -> Source:
        (tmp_path / name).write_text(text)
        return read_source(str(tmp_path / name), ConfHeader(), arch)

    return read_text


def test_a_set_is_the_same_in_every_format(read: Any) -> None:
    conf = read(CONF)
    as_json, as_text = (
        read(dispatcher_json_text(conf.instances)),
        read("# ours\n" + "".join(f"{e.text}\n" for e in conf.entries)),
    )
    assert [s.kind for s in (conf, as_json, as_text)] == ["conf", "dispatcher", "strings"]
    for other in (as_json, as_text):
        found = compare_sources(conf, other)
        assert (found.equal, found.by, found.n_common) == (True, "instance", len(KINDS))


def test_differences_are_named(read: Any) -> None:
    lines = CONF.splitlines(keepends=True)
    a, b = read("".join(lines[:3]), "a"), read("".join(lines[1:5]), "b")
    found = compare_sources(a, b)
    assert not found.equal
    assert found.only_a == (get_instance_string(a.instances[0]),)
    assert len(found.only_b) == 2
    assert compare_sources(b, a).only_b == found.only_a


def test_a_pool_is_compared_by_name(read: Any) -> None:
    swept = read(json.dumps(SWEEP))
    forward = [i for i in swept.instances if i.header[3] == "bf16"]
    pool = Pool("grouped_conv", "forward", "bf16", tuple(i.kernel for i in forward))
    found = compare_sources(read(pool_json(pool), "pool.json"), swept)
    assert (found.by, found.only_a, found.n_common) == ("name", (), len(forward))
    assert all("_fp16_" in name for name in found.only_b)


def test_shipped_pools_and_model_folders(tmp_path: Path) -> None:
    pool = load_pool(TARGET)
    (tmp_path / "pool.json").write_text(pool_json(pool))
    folder, shipped = (read_source(where, ConfHeader(), SM90) for where in (str(tmp_path), TARGET.name))
    assert compare_sources(folder, shipped).equal
    assert [e.name for e in shipped.entries] == list(pool.names)
    assert {"num_warps", "tile_m", "dtype", "name"} <= filter_fields(shipped)
    with pytest.raises(UsageError, match="kernels of other backends than CK Tile have no instance form"):
        _ = shipped.instances


def test_repeats_and_skipped_lines_are_reported(read: Any) -> None:
    conf = read(CONF + "rubbish\n")
    assert [number for number, _ in conf.skipped] == [len(KINDS) + 1]
    document = json.loads(dispatcher_json_text(conf.instances[:1]))
    document["instances"].append({**document["instances"][0], "id": 99})
    again = read(json.dumps(document))
    assert len(again.entries) == 1
    assert again.notes == ((0, "1 instances repeat another one"),)


def test_without_an_arch_of_ck_tile_only_general_rules_hold(read: Any) -> None:
    deep = KINDS["forward_v3"].replace("128,128,32,8,8", "128,128,512,8,8")
    assert len(read(deep, arch=SM90).entries) == 1
    assert len(read(deep, arch=GFX950).skipped) == 1
    with pytest.raises(ConfigError, match="a sweep needs an arch with CK Tile kernels, got sm90"):
        read(json.dumps(SWEEP), arch=SM90)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("# nothing\n", "the file is empty"),
        ("{", "file: not JSON: Expecting property name"),
        ("[" * 100_000, "file: not JSON"),
        ('{"a": 1, "a": 2}', "key 'a' occurs twice in one object"),
        ('{"a": ' + "9" * 5000 + "}", "file: not JSON"),
        ("[]", "a JSON of no known format"),
        ("[1]", "a JSON of no known format"),
        ('{"kernels": 1, "hash": 1}', "file: not a pool"),
        ('{"instances": []}', "file: the document: variant, .* is missing"),
        ("grouped_conv_forward_bf16_2d_16x64x128_compv4\nnonsense\n", "file: line 2: .*nonsense"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(read: Any, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(text)


def test_no_file_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere: this is neither a file nor a target's name"):
        read_source("nowhere", ConfHeader(), SM90)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="binary: not a text file"):
        read_source(str(tmp_path / "binary"), ConfHeader(), SM90)


@pytest.mark.long
@pytest.mark.parametrize("reader", instance_fuzz.READERS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damages=damages())
def test_a_damaged_file_never_breaks_a_reader(reader: str, damages: list[Damage], tmp_path: Path) -> None:
    instance_fuzz.check(reader, damages, tmp_path)


@pytest.mark.parametrize("reader", instance_fuzz.READERS)
def test_a_whole_file_keeps_every_promise(reader: str, tmp_path: Path) -> None:
    assert instance_fuzz.check(reader, [], tmp_path) == "read"
