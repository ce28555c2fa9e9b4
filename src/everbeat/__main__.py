"""`python -m everbeat` is the command `everbeat`."""

import sys

from everbeat.cli.main import main

sys.exit(main())
