"""The dashboard's state: a pure reducer over frames."""
