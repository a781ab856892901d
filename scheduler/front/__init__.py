"""The gRPC front: agents register and report here, people and gateways apply and read. Holds nothing but caches."""
