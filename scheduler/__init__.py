"""fleetbeat: the control plane."""
