"""`python -m hvdtrain` is the console script `hvdtrain`."""

from hvdtrain.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
