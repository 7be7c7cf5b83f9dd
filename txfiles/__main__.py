"""`python -m txfiles`."""

import sys

from txfiles.cli import main

if __name__ == "__main__":
    sys.exit(main())
