"""What can be wrong with a checkpoint."""


class CheckpointError(Exception):
    """The files cannot be read: missing, truncated, corrupt or inconsistent."""


class UnsupportedModelError(CheckpointError):
    """The files are sound, but hold a model that this engine cannot run."""
