"""A trained model: its trees, its cost model, and the folder of files that it is stored in.

Reads and writes model folders (`load_artefact`, `write_artefact`), ranks the kernels of a problem (`TrainedModel`), and
predicts the figures of any kernels (`Predictor`).
Imports NumPy, :mod:`tilewise.core`, `features`, `kernels` and `ops`, never LightGBM or MLflow. Training, the registry,
evaluation and the dispatcher build on it.
"""

from __future__ import annotations

from tilewise.model._artefact import ArtefactParts, load_artefact, parts_of, read_parts, write_artefact
from tilewise.model._artefact_files import SCORES, SELFTEST, folder_hash, write_files
from tilewise.model._attribution import contributions
from tilewise.model._confidence import (
    COVARIATES,
    LEVEL,
    MOST_DEVIATIONS,
    PARTS,
    TOLERANCE,
    Calibration,
    Confidence,
    covariates_of,
)
from tilewise.model._label_names import COST_MODEL_LABELS, EXTRA_LABELS, LABELS, SCALED_LABELS
from tilewise.model._predictor import KERNEL_NAME, QUANTITIES, Prediction, Predictor, given_cells
from tilewise.model._ranker import RankerInputs, RankerParts, compile_parts
from tilewise.model._shortlist import put_behind, shortlisted
from tilewise.model._trained_model import TrainedModel, ranked
from tilewise.model._trees import Ensemble

__all__ = [
    "COST_MODEL_LABELS",
    "COVARIATES",
    "EXTRA_LABELS",
    "KERNEL_NAME",
    "LABELS",
    "LEVEL",
    "MOST_DEVIATIONS",
    "PARTS",
    "QUANTITIES",
    "SCALED_LABELS",
    "SCORES",
    "SELFTEST",
    "TOLERANCE",
    "ArtefactParts",
    "Calibration",
    "Confidence",
    "Ensemble",
    "Prediction",
    "Predictor",
    "RankerInputs",
    "RankerParts",
    "TrainedModel",
    "compile_parts",
    "contributions",
    "covariates_of",
    "folder_hash",
    "given_cells",
    "load_artefact",
    "parts_of",
    "put_behind",
    "ranked",
    "read_parts",
    "shortlisted",
    "write_artefact",
    "write_files",
]
