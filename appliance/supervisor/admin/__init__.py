"""The control plane: admin REST, event stream and probes."""
