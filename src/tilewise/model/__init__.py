"""A trained model: its trees, and the folder it is kept in. NumPy only."""

from tilewise.model.artefact import ArtefactParts, load_artefact, write_artefact
from tilewise.model.labels import LABELS
from tilewise.model.trained import TrainedModel
from tilewise.model.trees import Ensemble

__all__ = ["LABELS", "ArtefactParts", "Ensemble", "TrainedModel", "load_artefact", "write_artefact"]
