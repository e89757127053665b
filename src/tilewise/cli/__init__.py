"""The command line, `tilewise VERB [ACTION] [key=value ...]`: one module per verb, with a function `run(cfg)`.

Modules in `measuring`, `models` and `runtime` are imported only when their verb runs. `main` parses the command,
`compose` reads conf/. The packages export nothing: the entry point is :func:`tilewise.cli.main.main`.
"""

from __future__ import annotations

from tilewise._rounding import round_as_recorded

round_as_recorded()  # before anything here loads NumPy
