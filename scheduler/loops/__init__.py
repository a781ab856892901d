"""The loops: one module each, run in cycles cut into chunks: they compare, and act on the difference."""
