"""Calling agents: channels, breakers, limits, and the mapping between records and the wire."""
