"""Placement: which node. Filters, score, capacity arithmetic and explanation, all pure."""
