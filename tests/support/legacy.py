"""Workloads as the reference scheduler has stored them, written by hand."""

from __future__ import annotations

import json
from typing import Any

REVISION = "rev-of-the-other-scheduler"
ZERO_TIME = "0001-01-01T00:00:00Z"

SPEC: dict[str, Any] = {
    "id": "web", "name": "web", "type": "docker-container", "revisionId": REVISION, "image": "nginx:1", "command": "",
    "commandList": None, "compose": "", "composeYaml": "", "projectName": "", "gitRepo": "", "gitBranch": "",
    "gitToken": "ghp_secret", "envVars": {"MODE": "live"},
    "resources": {"cpu_usage": 0.5, "memory_usage": 256, "disk_usage": 1}, "desiredState": "Running", "labels": None,
    "createdAt": "2025-11-02T10:00:00.123456789Z", "localPath": "", "ports": ["8080:80"], "volumes": None,
    "network": "", "restartPolicy": "always", "vm": None,
}  # fmt: skip
STATUS: dict[str, Any] = {
    "id": "web", "assignedNode": "n-1", "nodeId": "n-1", "status": "Running", "logs": "line\n" * 500,
    "metadata": {
        "last_action": "Assigned", "allow_move": True, "persys.scheduling.persistence_class": "ephemeral",
        "usage_cpu_percent": "1.0000", "reconciliationRetryCount": 0,
    },
    "retry": {"attempts": 0, "maxAttempts": 5, "nextRetryAt": ZERO_TIME},
    "statusInfo": {
        "actualState": "Running", "lastUpdated": "2025-11-02T10:00:09.5Z", "failureReason": "",
        "reason": {
            "code": "", "message": "", "lastTransition": ZERO_TIME, "nextRetryAt": ZERO_TIME, "retryable": False,
        },
    },
    "usage": None,
}  # fmt: skip


def spec_json(workload_id: str = "web", **fields: Any) -> bytes:
    """Return a value of /workloads-spec/{id}."""
    return json.dumps({**SPEC, "id": workload_id, "name": workload_id, **fields}).encode()


def status_json(workload_id: str = "web", **fields: Any) -> bytes:
    """Return a value of /workloads-status/{id}."""
    return json.dumps({**STATUS, "id": workload_id, **fields}).encode()


def whole_json(workload_id: str = "web", **fields: Any) -> bytes:
    """Return a value of /workloads/{id}."""
    whole = {**SPEC, **STATUS, "managedVolumes": None, "id": workload_id, "name": workload_id}
    return json.dumps({**whole, **fields}).encode()


def unassigned(**fields: Any) -> dict[str, Any]:
    """Return the fields of a status without a node."""
    info = {**STATUS["statusInfo"], "actualState": "Pending"}
    return {"assignedNode": "", "nodeId": "", "status": "Pending", "statusInfo": info, **fields}
