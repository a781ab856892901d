"""The reference node agent: runs workloads on one node and reports them to the control plane.

It knows the control plane only by the wire (scheduler.pb). What it runs survives its own
end: records on disk name each running copy, and the next start adopts what still runs.
"""

VERSION = "0.1.0"
