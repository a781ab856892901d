"""The runtimes `docker` and `compose`: workloads as containers of a Docker engine."""
