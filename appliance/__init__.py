"""The appliance: supervisor, gateways, telemetry and the command line."""
