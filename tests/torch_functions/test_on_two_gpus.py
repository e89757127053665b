"""Optimised networks on two GPUs: replicas of ``nn.DataParallel``, and ranks of a distributed training.

``PYTHONPATH=src:tests python3 -m pytest -m gpu tests/torch_functions/test_on_two_gpus.py``
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import tilewise.torch as ours
from torch_functions.networks import small, small_like
from torch_functions.predicting import predicting
from torch_functions.ranks import train_on_gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


def near(a: torch.Tensor, b: torch.Tensor) -> None:
    """Check equality up to the rounding of a network's layers in fp16."""
    a, b = a.float().cpu(), b.float().cpu()
    assert a.shape == b.shape
    assert float((a - b).norm() / b.norm()) < 0.01


@pytest.mark.parametrize("batch", [8, 7])
def test_replicas_compute_what_one_gpu_does(batch: int) -> None:
    x = torch.randn(batch, 4, 5, 4).half().cuda().contiguous(memory_format=torch.channels_last)
    with ours.use(*predicting()):
        model, report = ours.optimize(small().cuda(), x, launch="graph")
        assert {part for layer in report.layers for part in layer.fused} >= {"relu", "residual"}
        right = small_like(model).cuda().eval()
        parallel = nn.DataParallel(model, device_ids=[0, 1])
        for _ in range(3):  # later calls take the short way
            with torch.no_grad():
                near(parallel(x), right(x))


def test_replicas_train() -> None:
    x = torch.randn(8, 4, 5, 4).half().cuda().contiguous(memory_format=torch.channels_last)
    with ours.use(*predicting()):
        model = ours.optimize(small().cuda(), x, launch="graph").model
        right = small_like(model).cuda().eval()
        for network in (nn.DataParallel(model, device_ids=[0, 1]), right):
            network(x).float().square().mean().backward()
    for (name, mine), theirs in zip(model.named_parameters(), right.parameters(), strict=True):
        assert mine.grad is not None, name
        near(mine.grad, theirs.grad)


def test_ranks_choose_alike_and_train_as_one_gpu(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(train_on_gpu, (2, str(tmp_path)), nprocs=2)
    found = json.loads((tmp_path / "found.json").read_text())
    assert len({digest for digest, _ in found}) == 1
    assert all(error < 0.01 for _, error in found), found
