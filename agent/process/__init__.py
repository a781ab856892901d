"""The process runtime: workloads as process trees of the node itself."""
