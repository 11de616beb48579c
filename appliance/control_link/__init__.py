"""What supervisor and gateways say to each other."""
