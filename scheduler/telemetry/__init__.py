"""Redis: pulses, usage, events. Prometheus metrics. Logs. All of it may vanish without harm to the truth in etcd."""
