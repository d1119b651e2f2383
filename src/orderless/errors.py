"""The one error that missing, damaged or undownloadable data raises."""


class DataError(Exception):
    """A data set is missing, damaged or cannot be fetched; the message is one sentence."""
