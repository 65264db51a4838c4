"""`python -m hvdtrain.horovod_wheel`: first checks the version of Python, then runs the command line."""

import sys

from hvdtrain.errors import UsageError
from hvdtrain.horovod_wheel import require_supported


def main() -> int:
    """Runs the command line, which only a supported Python can import."""
    try:
        require_supported()
    except UsageError as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return error.exit_code
    from hvdtrain.horovod_wheel import command_line

    return command_line.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
