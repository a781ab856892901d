"""What to do next: pure functions of stored records, what was heard, and a given now."""
