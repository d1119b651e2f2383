"""The errors whose message is all that their reader needs; the command line prints nothing else."""


class UserError(ValueError):
    """What was given cannot be used; the message is one sentence with the value and the fix."""


class DataError(UserError):
    """A data set or file is missing, damaged or cannot be fetched."""


class WriteError(OSError):
    """A file cannot be written."""

    def __str__(self) -> str:
        return f"cannot write {self.filename}: {self.strerror}"
