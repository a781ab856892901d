"""Certificates in files that may be replaced at any time, and gRPC credentials made of them.

Knows nothing of the rest: the control plane, the agent and the command line all speak TLS by it.
"""
