"""Layers of known networks by name, on which predictions can be read without measurements."""

from __future__ import annotations

from typing import Any

from tilewise.model import TrainedModel
from tilewise.ops import GroupedConvProblem, Problem

TOP = 3

# One layer of each kind that gradients differ by: input, 3x3 at two depths, 1x1, strided 1x1, grouped, depthwise.
REPRESENTATIVE_LAYERS: dict[str, GroupedConvProblem] = {
    "resnet50 stem 7x7/2": GroupedConvProblem(32, 3, 64, 1, 224, 224, 7, 7, 2, 2, 3, 3),
    "resnet50 stage 1 3x3": GroupedConvProblem(32, 64, 64, 1, 56, 56, 3, 3, 1, 1, 1, 1),
    "resnet50 stage 2 1x1": GroupedConvProblem(32, 512, 128, 1, 28, 28, 1, 1),
    "resnet50 stage 3 3x3": GroupedConvProblem(32, 256, 256, 1, 14, 14, 3, 3, 1, 1, 1, 1),
    "resnet50 shortcut 1x1/2": GroupedConvProblem(32, 256, 512, 1, 56, 56, 1, 1, 2, 2),
    "resnext50 stage 1 grouped 3x3": GroupedConvProblem(32, 128, 128, 32, 56, 56, 3, 3, 1, 1, 1, 1),
    "mobilenet v2 depthwise 3x3": GroupedConvProblem(32, 144, 144, 144, 56, 56, 3, 3, 1, 1, 1, 1),
}


def predict_layer(model: TrainedModel, name: str, problem: Problem) -> dict[str, Any]:
    """Return a model's predictions for one layer as plain data, TFLOPS in all figures.

    Keys: `layer`, `problem`, `kernels` (number of kernels that support it), `top` (the best three), `mean_tflops` (over
    these kernels), `pipelines` (the best prediction of each pipeline, highest first, so the first is preferred) and
    `gap_to_second` (share by which the second lies below the best; None for a single kernel).
    """
    order, tflops = model.best(problem)
    best_of: dict[str, float] = {}
    for kernel, rate in zip(order, tflops, strict=True):
        configured = model.pool.kernels[kernel]
        best_of.setdefault(str(getattr(configured, "pipeline", configured.config)), float(rate))
    return {
        "layer": name,
        "problem": problem.stated(),
        "kernels": len(order),
        "top": [
            {"kernel_name": model.pool.names[kernel], "tflops": float(rate)}
            for kernel, rate in zip(order[:TOP], tflops[:TOP], strict=True)
        ],
        "mean_tflops": sum(tflops) / len(tflops) if tflops else None,
        "pipelines": best_of,
        "gap_to_second": 1 - float(tflops[1]) / float(tflops[0]) if len(tflops) > 1 else None,
    }
