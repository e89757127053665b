"""One process of a distributed job that optimises the network of the others, and trains it."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import tilewise.torch as ours
from tilewise.dispatch import Dispatcher
from torch_functions.inductor.graphs import compiled
from torch_functions.predicting import predicting


def small_net() -> torch.nn.Module:
    """Return a network of three convolutions and a linear layer, in fp16."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(8, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 1),
        torch.nn.Conv2d(16, 32, 3, stride=2), torch.nn.Flatten(), torch.nn.Linear(288, 4),
    ).half()  # fmt: skip


def compiled_graph() -> str:
    """Return the nodes that the adapter for ``torch.compile`` leaves and makes of that network, and its identity."""
    function, graphs = compiled(small_net().eval(), launch="graph")
    with torch.no_grad():
        function(torch.randn(2, 8, 8, 8).half())
    return " ".join([*graphs.forward, str(graphs.graph_pass.uuid())])


def optimise_on_rank(rank: int, world: int, folder: str) -> None:
    """Optimise on one rank, and write what every rank found out as rank 0 sees it."""
    torch.set_num_threads(1 + rank)  # ranks differ in everything but shapes and model
    torch.manual_seed(rank)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    os.environ["TILEWISE_CACHE"] = f"{folder}/cache-{rank}"
    ours.use(Dispatcher.from_folder(f"{folder}/model"))
    report = ours.optimize(small_net().eval(), torch.randn(2, 8, 8, 8).half(), launch="graph").report
    found: list[tuple[str, str, str]] = [("", "", "")] * world
    dist.all_gather_object(found, (report.digest, str(report), compiled_graph()))
    if rank == 0:
        Path(folder, "digests").write_text("\n".join(digest for digest, _, _ in found))
        Path(folder, "report").write_text(found[0][1])
        Path(folder, "graphs").write_text("\n".join(graph for _, _, graph in found))
    dist.destroy_process_group()


def train_on_gpu(rank: int, world: int, folder: str) -> None:
    """Make one step of a distributed training on a GPU per rank, and write how it differs from PyTorch on the CPU.

    ``found.json`` gets each rank's digest of choices, and the largest error of a parameter's gradient as a share of
    its norm.
    """
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    torch.manual_seed(0)
    network, x = small_net(), torch.randn(4 * world, 8, 8, 8).half()
    exact = copy.deepcopy(network).float()
    share = x.chunk(world)[rank].cuda()
    with ours.use(*predicting()):
        model, report = ours.optimize(network.cuda(), share, launch="graph")
        parallel = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
        parallel(share).float().square().mean().backward()
    exact(x.float()).square().mean().backward()
    pairs = zip(model.parameters(), exact.parameters(), strict=True)
    error = max(float((mine.grad.float().cpu() - p.grad).norm() / p.grad.norm()) for mine, p in pairs)
    found: list[tuple[str, float]] = [("", 0.0)] * world
    dist.all_gather_object(found, (report.digest, error))
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()
