"""The rule that a model is judged only on problems that it was not trained on, checked by keys."""

from __future__ import annotations

import numpy as np

from tilewise.data import TargetTable, keys_digest, split_keys
from tilewise.errors import ConfigError
from tilewise.model import TrainedModel


def require_unseen_problems(model: TrainedModel, rows: TargetTable, fraction: float) -> None:
    """Check that a model was not trained on the holdout problems of `rows`.

    The manifest's share is not believed alone. The split keys of the training problems, which a calibrated model
    stores, must not be among those held out; and on a table with the keys of the training's, the keys held out must
    have the digest that the manifest states.

    Raises:
        ConfigError: The model was trained on some of that holdout, or its manifest does not fit its training.
    """
    trained = float(model.manifest.get("holdout_fraction", 0.0))
    if fraction > trained:
        raise ConfigError(
            f"holdout.fraction {fraction} holds problems that {model.where} was trained on (it was trained with "
            f"{trained}); evaluate with that fraction or less, or train again"
        )
    if model.calibration is not None:
        held_out, learnt = (
            np.unique(split_keys(rows.target, keys), axis=0)
            for keys in (rows.holdout(fraction).distinct_keys, model.calibration.keys)
        )
        if n_shared := len(held_out) + len(learnt) - len(np.unique(np.concatenate([held_out, learnt]), axis=0)):
            raise ConfigError(
                f"{n_shared} of the {len(held_out)} shapes held out are among those that {model.where} was trained on, "
                f"though its manifest states a holdout of {trained}; train again"
            )
    stated = model.manifest.get("holdout_keys")
    if stated is None or model.manifest.get("group_keys") != keys_digest(rows.distinct_keys):
        return
    if stated != keys_digest(rows.holdout(trained).distinct_keys):
        raise ConfigError(
            f"{model.where} was trained on this table with another holdout than its manifest states ({trained}): the "
            "digests of the shapes held out differ; train again"
        )
