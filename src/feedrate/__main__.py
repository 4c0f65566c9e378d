# SPDX-License-Identifier: Apache-2.0
"""`python -m feedrate` is `feedrate`."""

import os
import sys

# Python has put the working folder first, in which anybody's modules may be. (`-P` and `-I` have not.)
if not getattr(sys.flags, "safe_path", sys.flags.isolated) and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]

from feedrate.cli import main

if __name__ == "__main__":
    sys.exit(main())
