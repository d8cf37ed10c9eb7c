"""`python -m partialsgd …` is `partialsgd …`."""

from __future__ import annotations

import sys

from partialsgd.lab.cli import main

if __name__ == "__main__":
    sys.exit(main())
