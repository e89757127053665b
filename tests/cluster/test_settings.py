"""Settings of a cluster are checked before anything starts."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from tilewise.cli.compose import compose, params_text
from tilewise.cluster import ClusterSettings
from tilewise.errors import ConfigError


@pytest.mark.parametrize("kind", ["local", "dask", "slurm", "ssh"])
def test_each_choice_of_conf_is_valid(kind: str) -> None:
    values: Any = OmegaConf.to_container(compose([f"cluster={kind}"]).cluster)
    assert ClusterSettings.from_config(values).kind == kind


def test_stages_get_the_cluster_of_params(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(params_text(["cluster=dask", "cluster.address=tcp://other:1"]))
    cluster = compose([f"params={tmp_path / 'params.yaml'}"]).cluster
    assert ClusterSettings.from_config(cluster) == ClusterSettings(kind="dask", address="tcp://other:1")


@pytest.mark.parametrize("given", [[], ["TURN_ARGS=cluster=dask"]])
def test_a_turn_of_the_loop_plans_measures_and_trains_there(given: list[str]) -> None:
    words = ["make", "--dry-run", "turn", "RUN=x", "REQUESTS=README.md", *given]
    shown = subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True).stdout
    lines = [line for line in shown.replace("\\\n", "").splitlines() if "cluster" in line.replace("cluster.txt", "")]
    for command, line in zip(("tilewise plan", "tilewise collect", "dvc repro") if given else (), lines, strict=True):
        assert command in line
        assert "cluster=dask" in line


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "kubernetes"}, "cluster.kind must be one of local, dask, slurm, ssh, got 'kubernetes'"),
        ({"kind": "dask"}, "cluster.address must be that of a scheduler, e.g. tcp://127.0.0.1:8786, got None"),
        ({"kind": "dask", "address": "tcp://a:1", "tls": "keys"}, "cluster.tls needs a cluster.address of tls://"),
        ({"kind": "ssh", "hosts": ["a"]}, "cluster.hosts must name the scheduler's host and at least one worker's"),
        ({"kind": "slurm", "workers": 0}, "cluster.workers must be an integer of at least 1, got 0"),
        ({"kind": "slurm", "gpus": 2}, "cluster.gpus must be 0 or 1, got 2"),
        ({"kind": "dask", "address": "tcp://a:1", "wait_s": 0}, "cluster.wait_s must be positive, got 0"),
        ({"machines": 2}, "cluster.machines above 1 needs a cluster of dask, slurm or ssh, got 2"),
        ({"queue": "gpu"}, "cluster has the keys kind, address,"),
    ],
)
def test_a_wrong_setting_states_the_rule_and_the_value(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        ClusterSettings.from_config(values)
    assert message in str(error.value)
