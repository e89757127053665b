"""``python -m tilewise``, for machines where the console script is not on the path."""

from tilewise.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
