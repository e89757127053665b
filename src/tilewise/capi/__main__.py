"""Command line: ``python -m tilewise.capi export MODEL_FOLDER FILE`` and ``python -m tilewise.capi build``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tilewise.capi._build import INCLUDE, build, build_helper
from tilewise.capi._export_file import export_model
from tilewise.errors import TilewiseError, UsageError
from tilewise.model import load_artefact


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line. Return the exit status: 0, 2 for a usage error, or 1 for other errors."""
    parser = argparse.ArgumentParser(prog="python -m tilewise.capi", description="Selection without Python.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    export = verbs.add_parser("export", help="write a model folder as the one file that the C library reads")
    export.add_argument("model", help="a model folder, e.g. models/gemm_universal_bf16_sm90")
    export.add_argument("file", help="the file to write, e.g. gemm.twm")
    verbs.add_parser("build", help="compile the library and gpu_helper, and print their paths")
    args = parser.parse_args(argv)
    try:
        if args.verb == "export":
            left_out = export_model(load_artefact(args.model), args.file)
            if left_out:
                print(f"left out, as they run through Python: {', '.join(left_out)}")
        else:
            print(f"library    {build()}\ninclude    {INCLUDE}\ngpu_helper {build_helper()}")
    except (TilewiseError, OSError) as e:
        print(f"tilewise.capi: error: {e}", file=sys.stderr)
        return 2 if isinstance(e, UsageError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
