"""The loader that MLflow calls: ``mlflow.pyfunc.load_model("models:/<target>@production").predict(problems)``.

MLflow stores this module's name with every published model, so the module stays public under this name. It loads a
folder of text and JSON: neither a pickle nor code comes from the registry. The wheel beside it is for environments that
MLflow creates.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewise.errors import ArtefactError, KernelError, UsageError
from tilewise.model import KERNEL_NAME, QUANTITIES, Predictor, TrainedModel, given_cells, load_artefact
from tilewise.registry._versions import HASH_TAG

if TYPE_CHECKING:
    import pandas as pd


class KernelSelector:
    """A model behind MLflow's interface: problems in, selected kernels out."""

    def __init__(self, model: TrainedModel) -> None:
        self._model, self._predictor = model, Predictor(model)

    def predict(self, model_input: pd.DataFrame, params: dict[str, object] | None = None) -> pd.DataFrame:
        """Select a kernel for each row, or predict the figures of the kernel that the row names.

        Args:
            model_input: The problem columns of the model's op, optionally ``dtype``, which must be the model's, and
                ``kernel_name``, a kernel of the pool or any other. Empty cells and missing columns take their default.
            params: Unused.

        Returns:
            One row per problem: ``kernel_name``, ``predicted_tflops``, ``predicted_latency_ms``,
            ``predicted_bandwidth_gb_s``.

        Raises:
            MlflowException: A row is an impossible problem, no kernel supports it, or the named one does not. A server
                answers with status 400.
        """
        import pandas as pd
        from mlflow.exceptions import MlflowException

        rows = []
        for number, row in enumerate(model_input.to_dict("records")):
            try:
                rows.append(self._predicted(given_cells(row)))
            except UsageError as e:
                raise MlflowException.invalid_parameter_value(f"row {number}: {e}") from e
        columns = [KERNEL_NAME, *(f"predicted_{name}" for name in QUANTITIES)]
        return pd.DataFrame(rows, columns=columns, index=model_input.index)

    def _predicted(self, cells: dict[str, Any]) -> tuple[str | float, ...]:
        """Return the kernel and its figures for a row."""
        named = cells.pop(KERNEL_NAME, None)
        target = self._model.target
        problem = target.problem(cells)
        best = [self._model.pool.kernels[i] for i in self._model.best(problem, 1)[0]]
        kernels = best if named is None else [named]
        if not kernels:
            raise KernelError(
                f"a problem needs a kernel of the pool that supports it, but no kernel of {target.name} "
                f"supports {problem}; add one to the pool"
            )
        (found,) = self._predictor.predict(problem, kernels)
        if found.why_unsupported:
            raise KernelError(f"{found.kernel_name} does not support {problem}: {found.why_unsupported}")
        return found.kernel_name, *found.figures().values()


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
