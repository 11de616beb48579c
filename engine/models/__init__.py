"""Model architectures, one small file per family, built from shared layers."""
