"""Where the dashboard's frames come from."""
