"""`fleetbeat up`: the whole control plane and a few nodes on one machine."""
