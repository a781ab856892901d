"""Generated stubs (make proto); never edited."""
