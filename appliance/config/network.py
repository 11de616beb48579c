"""What a host name or address says about who can reach it. Standard library only."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server bound to `host`."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_address(host: str) -> bool:
    """Whether `host` is an IP address in digits, IPv6 with or without brackets."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
