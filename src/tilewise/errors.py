"""The errors that tilewise raises on purpose.

A class exists where a caller would act differently::

    TilewiseError
    ├── UsageError                    the caller can correct it; the command line exits with 2
    │   ├── ConfigError               a setting is unknown, missing or contradicts another
    │   ├── ProblemError              an impossible problem; `.field` names the dimension
    │   ├── KernelError               an illegal kernel configuration, or an unparsable kernel name
    │   ├── DataError                 an unusable measurement table; names the file and the row or column
    │   ├── ArtefactError             a model folder that is missing, damaged or foreign
    │   ├── MissingExtraError         a library of an extra is not installed
    │   └── UnknownTargetError        no model, table or version is known for this target
    ├── PromotionRefusedError         the gate refused the candidate; production is unchanged
    ├── RegistryUnavailableError      the tracking server or its store cannot be reached
    │   └── AccessDeniedError         the server does not know the user, or does not allow the action
    ├── LibraryError                  a kernel library does not load, or a call of it returns an error code
    ├── ServersError                  a server of tilewise.servers does not start
    └── MeasurementError              measuring failed: no GPU, or a worker that cannot start
        └── UnfinishedError           the budget is spent; running the same command again continues

Every message states the rule, the value and the remedy.
"""

_MAX_CHARS = 300  # of an error in one line


class TilewiseError(Exception):
    """Base class of all errors raised on purpose."""


class UsageError(TilewiseError):
    """A mistake of the caller; the message states the correction."""


class ConfigError(UsageError):
    """A setting that is unknown, missing or contradicts another."""


class ProblemError(UsageError, ValueError):
    """An impossible problem.

    Attributes:
        field: The dimension that breaks the rule, e.g. ``"C"``.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class KernelError(UsageError, ValueError):
    """An illegal kernel configuration, or an unparsable kernel name."""


class DataError(UsageError):
    """An unusable measurement table; the message names the file and the row or column."""


class ArtefactError(UsageError):
    """A model folder that is missing, damaged, or not written by tilewise."""


class MissingExtraError(UsageError, ModuleNotFoundError):
    """A library that is not installed; the message names the extra of tilewise that has it."""


class UnknownTargetError(UsageError):
    """A target, or a version of it, that does not exist."""


class PromotionRefusedError(TilewiseError):
    """A refused candidate; production is unchanged. The message holds the reasons."""


class RegistryUnavailableError(TilewiseError):
    """A tracking server or store that cannot be reached."""


class AccessDeniedError(RegistryUnavailableError):
    """A tracking server that does not know the user, or does not allow the action."""


class LibraryError(TilewiseError):
    """A kernel library that does not load, or whose call returns an error code; names the file and the function."""


class ServersError(TilewiseError):
    """A server of ``tilewise.servers`` that does not start; the message names its log."""


class MeasurementError(TilewiseError):
    """A failure of measuring itself: no GPU, or a worker that cannot start."""


class UnfinishedError(MeasurementError):
    """A spent budget with problems left. Results are kept; running the same command again continues."""


def one_line(error: BaseException) -> str:
    """Return an error in one line for logs and files: its class and the beginning of its message."""
    text = f"{type(error).__name__}: {error}".strip()
    return text.splitlines()[0][:_MAX_CHARS]
