"""The parent process: runs engines and gateways, hosts control plane and telemetry hub."""
