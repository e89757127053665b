"""The loader that MLflow calls: ``mlflow.pyfunc.load_model("models:/<target>@production").predict(problems)``.

MLflow stores this module's name with every published model, so the module stays public under this name. It loads a
folder of text and JSON: neither a pickle nor code comes from the registry. The wheel beside it is for environments that
MLflow creates.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tilewise.errors import ArtefactError, KernelError, UsageError
from tilewise.model import TrainedModel, load_artefact, ranked
from tilewise.ops import OPS
from tilewise.registry._versions import HASH_TAG

if TYPE_CHECKING:
    import pandas as pd


class KernelSelector:
    """A model behind MLflow's interface: problems in, selected kernels out."""

    def __init__(self, model: TrainedModel) -> None:
        self._model = model

    def predict(self, model_input: pd.DataFrame, params: dict[str, object] | None = None) -> pd.DataFrame:
        """Select a kernel for each row.

        Args:
            model_input: The problem columns of the model's op. Empty cells and missing columns take their default.
            params: Unused.

        Returns:
            One row per problem: ``kernel_name``, ``predicted_tflops`` (TFLOPS).

        Raises:
            MlflowException: A row is an impossible problem, or no kernel supports it. A server answers with status 400.
        """
        import pandas as pd
        from mlflow.exceptions import MlflowException

        selected = []
        for number, row in enumerate(model_input.to_dict("records")):
            try:
                selected.append(self._select(row))
            except UsageError as e:
                raise MlflowException.invalid_parameter_value(f"row {number}: {e}") from e
        return pd.DataFrame(selected, columns=["kernel_name", "predicted_tflops"], index=model_input.index)

    def _select(self, row: dict[str, object]) -> tuple[str, float]:
        # A column with empty cells arrives as floats: 3.0 is the integer 3, and NaN an empty cell.
        cells = {str(k): int(v) if isinstance(v, float) and v.is_integer() else v for k, v in row.items() if v == v}
        problem = OPS[self._model.target.op].from_dict({k: v for k, v in cells.items() if v is not None})
        scores = self._model.score(problem)
        order = ranked(scores)
        if not len(order):
            raise KernelError(
                f"a problem needs a kernel of the pool that supports it, but no kernel of {self._model.target.name} "
                f"supports {problem}; add one to the pool"
            )
        tflops = self._model.tflops_of_scores(problem, scores)
        return self._model.pool.names[order[0]], float(tflops[order[0]])


def _load_pyfunc(data_path: str) -> KernelSelector:
    """Load the folder that was given to ``log_model`` as ``data_path``. MLflow calls this function by its name.

    Raises:
        ArtefactError: The files are damaged, or differ from those that the ``MLmodel`` file above them was written for.
    """
    folder = Path(data_path)
    model = load_artefact(folder)
    expected = _metadata(folder.parent.parent / "MLmodel")
    for key, found in (("target", model.target.name), (HASH_TAG, model.content_hash)):
        if expected.get(key, found) != found:
            raise ArtefactError(
                f"{folder}: {key} is {found}, but MLmodel was written for {expected[key]}: foreign files; "
                "publish the model again"
            )
    return KernelSelector(model)


def _metadata(path: Path) -> dict[str, object]:
    """Return the metadata that :func:`tilewise.registry.promotion.publish` wrote to ``MLmodel``, or {}."""
    import yaml

    try:
        metadata = yaml.safe_load(path.read_text())["metadata"]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError):
        return {}
    return metadata if isinstance(metadata, dict) else {}
