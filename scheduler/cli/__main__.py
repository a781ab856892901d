"""`python -m scheduler.cli` is `fleetbeat`."""

import sys

from scheduler.cli.main import main

sys.exit(main())
