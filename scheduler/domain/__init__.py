"""The nouns of fleetbeat and their state machines: pure data, no I/O, no clock."""
