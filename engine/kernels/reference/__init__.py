"""The reference backend in plain torch: the oracle of the faster ones."""
