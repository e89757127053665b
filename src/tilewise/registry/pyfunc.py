"""How MLflow loads a registered model: ``mlflow.pyfunc.load_model("models:/<target>@production").predict(problems)``.

MLflow stores the name of this module and a folder of text and JSON; neither a pickle nor code comes from the registry.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewise.errors import ArtefactError, KernelError
from tilewise.model.artefact import load_artefact
from tilewise.model.trained import TrainedModel, ranked
from tilewise.ops import OPS
from tilewise.registry.versions import HASH_TAG

if TYPE_CHECKING:
    import pandas as pd


class KernelSelector:
    """A model for MLflow: problems in, selected kernels out."""

    def __init__(self, model: TrainedModel) -> None:
        self._model = model

    def predict(self, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Select a kernel for each row.

        Args:
            model_input: the problem columns of the model's op; an empty cell or a column left out takes its default.
            params: unused.

        Returns:
            A row a problem: ``kernel_name``, ``predicted_tflops`` (TFLOPS).

        Raises:
            ProblemError: a row is no possible problem.
            KernelError: no kernel supports it.
        """
        import pandas as pd

        selected = [self._select(row) for row in model_input.to_dict("records")]
        return pd.DataFrame(selected, columns=["kernel_name", "predicted_tflops"], index=model_input.index)

    def _select(self, row: dict[str, Any]) -> tuple[str, float]:
        # A column with empty cells arrives as floats: 3.0 is the integer 3.
        given = {str(k): int(v) if isinstance(v, float) and v.is_integer() else v for k, v in row.items() if v == v}
        problem = OPS[self._model.target.op].from_dict({k: v for k, v in given.items() if v is not None})
        scores = self._model.score(problem)
        order = ranked(scores)
        if not len(order):
            raise KernelError(f"no kernel of {self._model.target.name} supports {problem}")
        tflops = self._model.tflops_of_scores(problem, scores)
        return self._model.pool.names[order[0]], float(tflops[order[0]])


def _load_pyfunc(data_path: str) -> KernelSelector:
    """What MLflow calls, with the folder that was given to ``log_model`` as ``data_path``.

    Raises:
        ArtefactError: the files are damaged, or not those that the ``MLmodel`` file above them was written for.
    """
    folder = Path(data_path)
    model = load_artefact(folder)
    meant = _metadata(folder.parent.parent / "MLmodel")
    for key, found in (("target", model.target.name), (HASH_TAG, model.content_hash)):
        if meant.get(key, found) != found:
            raise ArtefactError(f"{folder}: {key} is {found}, but MLmodel was written for {meant[key]}: foreign files")
    return KernelSelector(model)


def _metadata(path: Path) -> dict[str, Any]:
    """What :func:`tilewise.registry.publish.publish` wrote into ``MLmodel``; empty where there is no such file."""
    import yaml

    try:
        found = yaml.safe_load(path.read_text())["metadata"]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}
