"""The quarterdeck command."""
