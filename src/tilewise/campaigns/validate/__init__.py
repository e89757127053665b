"""Validate a model by measurements: plans for seen and unseen shapes, request traces, and reports.

`plan_training_shapes` and `plan_unseen_shapes` give plans for `tilewise.collect`; the `judge_` functions take measured
tables and give a :data:`ValidationReport`, which `write_validation_report` writes. They import collect, data, evaluate
and model; they never measure. Used by `tilewise validate`.
"""

from __future__ import annotations

from tilewise.campaigns.validate._backward import predict_problems
from tilewise.campaigns.validate._layers import REPRESENTATIVE_LAYERS, predict_layer
from tilewise.campaigns.validate._request_trace import judge_trace
from tilewise.campaigns.validate._validation_plans import ShapePlanOptions, plan_training_shapes, plan_unseen_shapes
from tilewise.campaigns.validate._validation_report import (
    Aims,
    ValidationReport,
    backward_report,
    judge_measurements,
    validation_page,
    write_validation_report,
)

__all__ = [
    "REPRESENTATIVE_LAYERS",
    "Aims",
    "ShapePlanOptions",
    "ValidationReport",
    "backward_report",
    "judge_measurements",
    "judge_trace",
    "plan_training_shapes",
    "plan_unseen_shapes",
    "predict_layer",
    "predict_problems",
    "validation_page",
    "write_validation_report",
]
