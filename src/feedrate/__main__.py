# SPDX-License-Identifier: Apache-2.0
"""`python -m feedrate` is `feedrate`."""

import sys

from feedrate.cli import main

if __name__ == "__main__":
    sys.exit(main())
