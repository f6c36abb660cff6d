"""``python -m bmoe_core`` is the command ``bmoe``."""

import sys

from bmoe_core.cli import main

sys.exit(main())
