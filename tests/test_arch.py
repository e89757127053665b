"""Hardware profiles: every shipped file is complete, and every fault of a file is named."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tilewise.arch import LATER_FIGURES, HardwareProfile, load_arch
from tilewise.conf_files import conf_dir
from tilewise.errors import ConfigError

ARCHS = sorted(p.stem for p in (conf_dir() / "arch").glob("*.yaml"))


def own_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy conf/ into a folder that the test may change."""
    conf = shutil.copytree(conf_dir(), tmp_path / "conf")
    monkeypatch.setenv("TILEWISE_CONF", str(conf))
    return conf


@pytest.mark.parametrize("name", ARCHS)
def test_a_profile_is_complete_and_survives_its_dict(name: str) -> None:
    arch = load_arch(name)
    assert arch.name == name
    assert HardwareProfile.from_dict(arch.to_dict()) == arch
    assert arch.shared_memory_bytes <= arch.shared_memory_unit_bytes
    if name != "gfx90a":  # CDNA 2 has no 8-bit floating point
        assert arch.peak("fp8") == pytest.approx(2 * arch.peak("bf16"), rel=1e-3)
    if name != "sm90":  # it has no fp32 kernels
        assert arch.peak("fp32") <= arch.peak("bf16") / 4 * 1.01


@pytest.mark.parametrize("name", ARCHS)
def test_figures_that_tell_archs_apart_are_saved_on_request_only(name: str) -> None:
    arch, amd = load_arch(name), name != "sm90"
    assert arch.compute_units % arch.chiplets == 0
    assert arch.simds_per_unit == 4
    assert arch.l1_bytes in ((16384, 32768) if amd else (262144,))
    assert (arch.l3_bytes == 256 * 2**20) is (arch.chiplets == 8)
    saved = arch.to_dict()  # a model's files, which must stay as they were
    assert {*LATER_FIGURES} & set(saved) == set()
    whole = HardwareProfile.from_dict(arch.to_dict(with_later=True))
    assert [getattr(whole, n) for n in LATER_FIGURES] == [getattr(arch, n) for n in LATER_FIGURES]
    assert HardwareProfile.from_dict({**saved, "chiplets": 2}).chiplets == 2
    with pytest.raises(ConfigError, match="'l3_bytes' must be positive"):
        HardwareProfile.from_dict({**saved, "l3_bytes": -1})


@pytest.mark.parametrize("name", ARCHS)
def test_every_figure_names_its_source(name: str) -> None:
    lines = (conf_dir() / "arch" / f"{name}.yaml").read_text().splitlines()
    without = [line for line in lines if re.match(r"^\w+: *[\d]", line) and "[" not in line.partition("#")[2]]
    assert without == []


def test_known_figures() -> None:
    units = {name: load_arch(name).compute_units for name in ("sm90", "gfx90a", "gfx942", "gfx950")}
    assert units == {"sm90": 132, "gfx90a": 104, "gfx942": 304, "gfx950": 256}
    shared = {name: load_arch(name).shared_memory_bytes for name in units}
    assert shared == {"sm90": 227 * 1024, "gfx90a": 64 * 1024, "gfx942": 64 * 1024, "gfx950": 160 * 1024}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"warp_size": None}, "'warp_size' is missing; add it"),
        ({"colour": 1}, "'colour' is not a figure of a hardware profile; known are name, vendor"),
        ({"dram_gb_s": 0}, "'dram_gb_s' must be positive and finite, got 0"),
        ({"dram_gb_s": float("nan")}, "'dram_gb_s' must be positive and finite, got nan"),
        ({"peak_tflops": {"bf16": float("inf")}}, "'peak_tflops' must be positive and finite"),
        ({"l2_bytes": True}, "'l2_bytes' must be positive and finite, got True"),
        ({"peak_tflops": {"bf16": -1.0}}, "'peak_tflops' must be positive"),
        ({"peak_tflops": 900.0}, "'peak_tflops' must be a mapping such as .*, got 900.0"),
        ({"compute_units": "132"}, "'compute_units' must be a whole number, got '132'"),
        ({"dram_gb_s": "4e3"}, "'dram_gb_s' must be a number, got '4e3'"),
        ({"vendor": 1}, "'vendor' must be a text, got 1"),
    ],
)
def test_a_wrong_profile_names_source_and_key(change: dict[str, Any], message: str) -> None:
    values = {k: v for k, v in {**load_arch("sm90").to_dict(), **change}.items() if v is not None}
    with pytest.raises(ConfigError, match=f"mine.yaml: {message}"):
        HardwareProfile.from_dict(values, source="mine.yaml")


def test_unknown_archs_and_types_are_named() -> None:
    with pytest.raises(
        ConfigError,
        match=r"arch 'sm42' is unknown; known are gfx90a, gfx942, gfx950, sm90, or add conf/arch/sm42\.yaml",
    ):
        load_arch("sm42")
    with pytest.raises(ConfigError, match=r"arch sm90 has no peak_tflops for 'int4'; add it to conf/arch/sm90\.yaml"):
        load_arch("sm90").peak("int4")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: sm90", "'clock_mhz' is missing"),
        ("- name", "a hardware profile must be a mapping of figures, got"),
        ("name: [", "must be a readable YAML file: while parsing"),
    ],
)
def test_a_file_without_a_profile_is_named(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = own_conf(tmp_path, monkeypatch)
    (conf / "arch" / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=rf"arch/mine\.yaml: {message}"):
        load_arch("mine")


def test_a_profile_has_the_name_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = own_conf(tmp_path, monkeypatch)
    shutil.copy(conf / "arch" / "sm90.yaml", conf / "arch" / "sm91.yaml")
    with pytest.raises(ConfigError, match=r"sm91\.yaml: 'name' must be 'sm91', as in the file's name, got 'sm90'"):
        load_arch("sm91")


def test_a_conf_folder_must_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_CONF", str(tmp_path))
    with pytest.raises(ConfigError, match=r"TILEWISE_CONF=.*: must hold a config\.yaml; copy .*conf there"):
        load_arch("sm90")


def test_an_arch_cannot_name_a_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is unknown"):
        load_arch("../arch/sm90")
