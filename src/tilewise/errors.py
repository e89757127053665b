"""Every error that tilewise raises on purpose.

A class exists where a caller would act differently::

    TilewiseError
    ├── UsageError              the caller can mend it; the command line exits with 2
    │   ├── ConfigError         a setting is unknown, missing or contradicts another
    │   ├── ProblemError        an impossible problem; `.field` names the dimension
    │   ├── KernelError         an illegal kernel configuration, or a name that does not parse
    │   ├── DataError           a measurement table that cannot be used; names file and row
    │   ├── ArtefactError       a model folder that is missing, damaged or foreign
    │   └── UnknownTargetError  nothing is known under this target's name
    ├── PromotionRefusedError   the gate said no; production stays as it is
    ├── RegistryUnavailableError  the tracking server or its store cannot be reached
    │   └── AccessDeniedError   it can, but the user may not do this there, or is not known
    ├── LibraryError            a kernel library fails: it does not start, or a call of it gives an error code
    ├── ServersError            a server of tilewise.servers does not start
    └── MeasurementError        measuring itself failed (no GPU, a worker that cannot start)
        └── UnfinishedError     its budget is spent and problems are left; the same command goes on
"""

_MAX_CHARS = 300  # of an error in one line


class TilewiseError(Exception):
    """Base of all errors raised on purpose."""


class UsageError(TilewiseError):
    """A mistake of the caller: the message says what to change."""


class ConfigError(UsageError):
    """A setting is unknown, missing or contradicts another."""


class ProblemError(UsageError, ValueError):
    """An impossible problem.

    Attributes:
        field: the dimension that breaks the rule, e.g. ``"C"``.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class KernelError(UsageError, ValueError):
    """An illegal kernel configuration, or a kernel name that does not parse."""


class DataError(UsageError):
    """A measurement table that cannot be used; the message names file and row or column."""


class ArtefactError(UsageError):
    """A model folder that is missing, damaged, or not made by this library."""


class UnknownTargetError(UsageError):
    """Nothing is known under this target's name."""


class PromotionRefusedError(TilewiseError):
    """The gate said no; production stays as it is. The message holds the reasons."""


class RegistryUnavailableError(TilewiseError):
    """The tracking server or its store cannot be reached."""


class AccessDeniedError(RegistryUnavailableError):
    """The tracking server does not know the user, or does not let him do this."""


class LibraryError(TilewiseError):
    """A kernel library fails: it does not start, or a call of it gives an error code; names file and function."""


class ServersError(TilewiseError):
    """A server of ``tilewise.servers`` does not start; the message names its log."""


class MeasurementError(TilewiseError):
    """Measuring itself failed: no GPU, or a worker that cannot start."""


class UnfinishedError(MeasurementError):
    """The budget is spent and problems are left; what is measured is kept, and the same command goes on with it."""


def one_line(error: BaseException) -> str:
    """An error in one line, as records and logs keep it: its class and the beginning of what it says."""
    text = f"{type(error).__name__}: {error}".strip()
    return text.splitlines()[0][:_MAX_CHARS]
