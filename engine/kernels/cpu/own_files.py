"""Opens files of the weight cache that nobody but us, or root, can have written."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class ForeignFileError(Exception):
    """A file may be of somebody else; says why."""


def open_own(path: Path) -> BinaryIO:
    """Open a file for reading; one that is no file, such as a pipe, does not block.

    Raises:
        ForeignFileError: others may have written it.
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    try:
        check_own(descriptor)
    except BaseException:
        file.close()
        raise
    return file


def check_own(descriptor: int) -> None:
    """Look who may have written an open file.

    Raises:
        ForeignFileError: others than us and root, or it is no file.
    """
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        raise ForeignFileError("it is no regular file")
    if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & _OTHERS_WRITE:
        raise ForeignFileError("others may have written it")
