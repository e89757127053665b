"""The process in which atheris fuzzes one reader; ``benchmarks.robustness.fuzz --guided`` starts it.

python -m benchmarks.robustness.guided READER CORPUS [flags of libFuzzer]
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import atheris

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

with atheris.instrument_imports(include=["tilewise"]):
    from fuzzed.readers import READERS


def main() -> None:
    """Fuzz until a flag ends it; the process ends here."""
    from benchmarks.robustness.fuzz import quiet

    quiet()
    reader, folder = READERS[sys.argv[1]], Path(tempfile.mkdtemp(dir=Path(sys.argv[2]).parent))

    def mutate(content: bytes, most: int, seed: int) -> bytes:
        changed = reader.mutate(content, random.Random(seed)) if seed % 2 else bytes(atheris.Mutate(content, most))
        return changed[:most]

    atheris.Setup([sys.argv[0], *sys.argv[2:]], lambda content: reader.read(content, folder), custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
