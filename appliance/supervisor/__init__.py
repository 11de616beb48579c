"""The parent process: runs the engines and gateways, hosts the control plane and the telemetry hub."""
