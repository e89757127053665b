"""The way to MLflow: which server or database, whether it answers, and what a training leaves there.

Nothing here is imported by the runtime unless it asks the registry; mlflow itself (1.4 s) is imported on first use.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tilewise.errors import AccessDeniedError, ConfigError, RegistryUnavailableError
from tilewise.files import locked
from tilewise.registry.datasets import log_dataset
from tilewise.registry.trials import log_trials

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from tilewise.train.result import TrainingResult

_URI = "MLFLOW_TRACKING_URI"
DATABASE = "mlflow.db"
ARTIFACTS = "mlartifacts"

# How long the first question may take, and how patient later ones are; set MLflow's own variables to differ.
_PROBE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "5", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
_PATIENCE = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
}
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "GIT_PYTHON_REFRESH": "quiet",  # no git, no commit tag, no complaint
    # Through the server: MLflow marks *.gz in an S3 store as encoded, and unpacks it when it asks the store itself.
    "MLFLOW_ENABLE_PROXY_MULTIPART_DOWNLOAD": "false",
}
_CONNECT_SECONDS = 5.0
_session_lock = threading.RLock()
if hasattr(os, "register_at_fork"):  # a thread that held it is not in the child
    os.register_at_fork(after_in_child=_session_lock._at_fork_reinit)  # type: ignore[attr-defined]
_asked: ContextVar[str | None] = ContextVar("tilewise_registry", default=None)
_NO_ANSWER = "the MLflow tracking server does not answer; start it, or set tracking.uri or MLFLOW_TRACKING_URI"
_REFUSALS = {
    "PERMISSION_DENIED": "the MLflow server does not let you do this",
    "UNAUTHENTICATED": "the MLflow server does not know this user and password",
}
_DATABASE_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}


def quiet_mlflow() -> None:
    """Keep mlflow's hints, migration logs and telemetry out of the output; call before importing it."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import mlflow  # noqa: F401  (sets its own log level on import, so ours comes after)

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module="mlflow")


def project_folder() -> Path:
    """The folder with ``dvc.yaml``, this one or the nearest above; else the current one."""
    here = Path.cwd()
    return next((p for p in (here, *here.parents) if (p / "dvc.yaml").is_file()), here)


def resolve_uri(uri: str | None = None) -> str:
    """`uri`, else ``MLFLOW_TRACKING_URI``, else an SQLite file in the project's folder."""
    return uri or os.environ.get(_URI) or f"sqlite:///{project_folder() / DATABASE}"


def shown(uri: str) -> str:
    """`uri` for messages, without a password."""
    return re.sub(r"(//[^/@:\s]*):[^/\s]*@", r"\1:***@", uri)


def is_missing(uri: str) -> bool:
    """Whether `uri` is an SQLite file that nobody has made yet: connecting would make it, which a reader should not."""
    return uri.startswith("sqlite:///") and not _sqlite_path(uri).exists()


def connect(uri: str | None = None) -> str:
    """Choose the tracking server and registry, and make sure that it answers within seconds.

    Args:
        uri: see :func:`resolve_uri`.

    Returns:
        The URI that is now in use, for messages: without a password.

    Raises:
        ConfigError: the URI is of no kind that MLflow knows.
        RegistryUnavailableError: nothing answers there, or what answers is no MLflow.
    """
    resolved = resolve_uri(uri)
    quiet_mlflow()
    import mlflow

    if urlsplit(resolved).scheme.partition("+")[0] in ("sqlite", *_DATABASE_PORTS):
        _require_database(resolved)  # MLflow would ask ten times with growing pauses
    _set_tracking_uri(resolved)
    with _one_at_a_time(resolved), guard(_NO_ANSWER), _environment(_PROBE):
        mlflow.MlflowClient().search_experiments(max_results=1)
    for name, value in _PATIENCE.items():
        os.environ.setdefault(name, value)
    return shown(resolved)


@contextmanager
def session(uri: str | None = None) -> Iterator[str]:
    """:func:`connect` for the time of the block: an application's own choice of MLflow server is left as it was.

    MLflow keeps the choice in one place for all threads, so sessions of several threads wait for each other.

    Raises:
        ConfigError, RegistryUnavailableError: as :func:`connect`.
    """
    quiet_mlflow()
    import mlflow

    with _session_lock:
        given, used = os.environ.get(_URI), mlflow.get_tracking_uri()
        is_set = bool(mlflow.is_tracking_uri_set())  # type: ignore[no-untyped-call]
        chosen = used if is_set and used != given else None
        try:
            with _environment(_PATIENCE):
                yield connect(uri)
        finally:
            _set_tracking_uri(chosen)


@contextmanager
def reading(uri: str) -> Iterator[None]:
    """Let this thread ask about versions at `uri` for the time of the block; MLflow's own choice is left alone.

    Unlike a :func:`session`, it cannot disturb what other threads log meanwhile. What does not answer is given up soon.

    Raises:
        RegistryUnavailableError: it is a database that is away.
    """
    quiet_mlflow()
    if urlsplit(uri).scheme.partition("+")[0] in ("sqlite", *_DATABASE_PORTS):
        _require_database(uri)
    token = _asked.set(uri)
    try:
        with _session_lock, _environment(_PROBE):
            yield
    finally:
        _asked.reset(token)


def client_in_use() -> MlflowClient:
    """MLflow's client for the server that this thread is :func:`reading` from, else for the chosen one."""
    import mlflow

    return mlflow.MlflowClient(tracking_uri=_asked.get(), registry_uri=_asked.get())


def _set_tracking_uri(uri: str | None) -> None:
    """MLflow's own function, without its side effect on the environment: that belongs to the user."""
    import mlflow

    given = os.environ.get(_URI)
    mlflow.set_tracking_uri(uri)  # type: ignore[arg-type]  # None: back to the default
    if given is not None:
        os.environ[_URI] = given
    else:
        os.environ.pop(_URI, None)


@contextmanager
def guard(action: str) -> Iterator[None]:
    """Turn what MLflow and its libraries raise inside the block into one clear error.

    Raises:
        ConfigError: the URI is of no kind that MLflow knows.
        AccessDeniedError: the server does not know the user, or does not let him.
        RegistryUnavailableError: anything else that MLflow, the database or the network raised.
    """
    import mlflow
    import requests
    import sqlalchemy
    from mlflow.exceptions import InvalidUrlException, MlflowException
    from mlflow.tracking.registry import UnsupportedModelRegistryStoreURIException

    uri = shown(mlflow.get_tracking_uri())
    try:
        yield
    except (UnsupportedModelRegistryStoreURIException, InvalidUrlException) as e:
        raise ConfigError(f"tracking.uri {uri!r} is of no kind that MLflow knows: {_first_line(e)}") from e
    except (MlflowException, requests.RequestException, sqlalchemy.exc.SQLAlchemyError) as e:
        refusal = _REFUSALS.get(getattr(e, "error_code", ""))
        if refusal:
            raise AccessDeniedError(
                f"{refusal}: {uri}, {_user()}" + (f"; {action}" if action != _NO_ANSWER else "")
            ) from e
        raise RegistryUnavailableError(f"{action} ({uri}): {_first_line(e)}") from e


def _user() -> str:
    """Who asks, as MLflow's client finds it out; it sends a password along, which is not shown."""
    from mlflow.utils.credentials import read_mlflow_creds

    name = read_mlflow_creds().username
    return f"user {name}" if name else "no user named: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"


def experiment_id(name: str) -> str:
    """The experiment of that name, made or restored where needed."""
    import mlflow
    from mlflow.exceptions import MlflowException

    client = mlflow.MlflowClient()
    with guard(f"experiment {name!r} cannot be opened"):
        experiment = client.get_experiment_by_name(name)
        try:
            if experiment is None:
                return str(client.create_experiment(name, artifact_location=_artifact_location(name)))
            if experiment.lifecycle_stage != "active":
                client.restore_experiment(experiment.experiment_id)
        except MlflowException:
            experiment = client.get_experiment_by_name(name)  # another process was faster
            if experiment is None or experiment.lifecycle_stage != "active":
                raise
        return str(experiment.experiment_id)


def log_training(
    result: TrainingResult,
    model_dir: str | Path,
    plots: Sequence[str | Path] = (),
    *,
    content_hash: str | None = None,
    experiment: str | None = None,
) -> str:
    """Log one training: parameters, metrics by fold and overall, importances, plots, the model's files, the trials.

    Inside ``mlflow run`` (``MLFLOW_RUN_ID`` is set) it logs to that run; otherwise to a new one.

    Args:
        result: what the training handed on.
        model_dir: the model's folder, already written.
        plots: image files.
        content_hash: of the model, by which :func:`~tilewise.registry.publish.publish` finds this run again;
            None: read from `model_dir`.
        experiment: its name; None: the target's.

    Returns:
        The run's id.

    Raises:
        RegistryUnavailableError: the server went away.
    """
    import mlflow

    from tilewise.model.artefact import load_artefact

    if content_hash is None:
        content_hash = load_artefact(model_dir, verify=False).content_hash
    name = result.target.name
    with guard(f"the training of {name} cannot be logged"), training_run(experiment or name, name) as run_id:
        mlflow.log_params(_params(result))
        mlflow.set_tags(
            {
                "tilewise.target": name,
                "tilewise.kind": "train",
                "content_hash": content_hash,
                "data_hash": result.data_hash,
                "split_rule": result.split_rule,
                **{k: str(v) for k, v in _lineage(result.parts.manifest).items()},
            }
        )
        used = {"n_rows": result.n_rows, "n_problems": result.n_problems}
        log_dataset(run_id, name, result.data_hash, "training", **used)
        for fold in result.folds:
            mlflow.log_metrics({f"fold/{k}": v for k, v in _finite(fold.metrics).items()}, step=fold.fold)
        mlflow.log_metrics({f"cv/{k}": v for k, v in _finite(result.cv_metrics).items()})
        for by, curve in (("by_problems", result.by_problems), ("by_trees", result.by_trees)):
            for p in curve:
                figures = {f"{by}/mean_efficiency": p.mean_efficiency, f"{by}/p10_efficiency": p.p10_efficiency}
                mlflow.log_metrics(figures, step=p.n)
        importances = result.feature_importances
        mlflow.log_table(
            {"feature": list(importances), "gain": [float(v) for v in importances.values()]},
            "feature_importances.json",
        )
        for plot in plots:
            mlflow.log_artifact(str(plot), "plots")
        mlflow.log_artifacts(str(model_dir), "model_files")
        log_trials(result.tuning)
    return run_id


@contextmanager
def training_run(experiment: str, target: str) -> Iterator[str]:
    """An active run: that of ``mlflow run`` where there is one and nobody took it yet, else a new one in `experiment`.

    A second target of the same process (Hydra multirun) gets a run of its own: a run's parameters cannot change.
    """
    import mlflow

    given = os.environ.pop("MLFLOW_RUN_ID", None) if mlflow.active_run() is None else None
    if given and _exists(given):
        with mlflow.start_run(run_id=given):
            yield given
    else:
        with mlflow.start_run(experiment_id=experiment_id(experiment), run_name=f"train {target}", nested=True) as run:
            yield run.info.run_id


def _exists(run_id: str) -> bool:
    """Whether the run is of the server in use: ``mlflow run`` may have been pointed at another one."""
    import mlflow
    from mlflow.exceptions import MlflowException

    try:
        mlflow.MlflowClient().get_run(run_id)
    except MlflowException as e:
        if e.error_code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise
    return True


def _params(result: TrainingResult) -> dict[str, Any]:
    settings = result.settings
    return {
        **result.params,
        "label": settings.model.label,
        "n_splits": settings.n_splits,
        "seed": settings.seed,
        "holdout_fraction": settings.holdout_fraction,
        "n_trials": settings.tune.n_trials,
        "n_features": len(result.parts.features.names),
        "pool_size": len(result.parts.pool),
        "n_problems": result.n_problems,
        "n_rows": result.n_rows,
        "n_holdout_problems": result.n_holdout_problems,
    }


def _lineage(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {k: manifest[k] for k in ("git_revision",) if k in manifest}


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Without NaN and infinity, which some of MLflow's stores refuse."""
    return {k: float(v) for k, v in metrics.items() if abs(float(v)) < float("inf")}


def _artifact_location(experiment: str) -> str | None:
    """Beside the SQLite file; None lets a server decide."""
    import mlflow

    uri = mlflow.get_tracking_uri()
    if not uri.startswith("sqlite:"):
        return None
    return str((_sqlite_path(uri).parent / ARTIFACTS / experiment).absolute())


def _sqlite_path(uri: str) -> Path:
    return Path(uri.partition("///")[2].partition("?")[0] or DATABASE)


@contextmanager
def _one_at_a_time(uri: str) -> Iterator[None]:
    """Whoever asks an SQLite file first has MLflow make its tables; of two who do so at once, one would fail."""
    with ExitStack() as stack:
        if uri.startswith("sqlite:///"):
            path = _sqlite_path(uri)
            with suppress(OSError, ImportError):  # not ours to write; or Windows, which has no such locks
                stack.enter_context(locked(path.with_name(f"{path.name}.lock")))
        yield


def _require_database(uri: str) -> None:
    import sqlalchemy

    parts = urlsplit(uri)
    scheme = parts.scheme.partition("+")[0]
    try:
        if scheme != "sqlite":  # drivers differ in how long they wait
            address = (parts.hostname or "localhost", parts.port or _DATABASE_PORTS[scheme])
            socket.create_connection(address, _CONNECT_SECONDS).close()
        elif uri.count("/") > 2:
            _sqlite_path(uri).parent.mkdir(parents=True, exist_ok=True)
        engine = sqlalchemy.create_engine(uri, poolclass=sqlalchemy.NullPool)
        with engine.connect() as connection:
            sqlalchemy.inspect(connection).get_table_names()  # opens the file: a foreign one is noticed here
    except (sqlalchemy.exc.SQLAlchemyError, OSError, ValueError, ModuleNotFoundError) as e:
        raise RegistryUnavailableError(f"the MLflow database cannot be opened ({shown(uri)}): {_first_line(e)}") from e


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables for the time of the block, where the user has not set them."""
    before = {k: os.environ.get(k) for k in values if os.environ.get(k) in (None, _PATIENCE.get(k))}
    os.environ.update({k: values[k] for k in before})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _first_line(error: BaseException) -> str:
    """What went wrong, in one line: the innermost cause that the HTTP client reports, without passwords."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    cause = re.search(r"Caused by \w+\([\"'](?:\w+\(.*?\): )?(.*)[\"']\)\)", lines[0])
    return shown(cause[1] if cause else lines[0])
