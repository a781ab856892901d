"""The `fleetbeat` command line: data on stdout, messages on stderr, exit codes 0, 1 and 2."""
