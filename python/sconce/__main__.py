"""The command `sconce`."""

import os
import signal
import sys

if __package__:
    from ._sconce import main as _main
else:
    # The package was started as a folder, which is then on `sys.path`.
    from _sconce import main as _main  # type: ignore[import-not-found, no-redef, unused-ignore]


def main() -> int:
    # Python's handler would only set a flag, which nothing reads while the command runs.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _main([sys.executable, os.path.dirname(os.path.abspath(__file__))], sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
