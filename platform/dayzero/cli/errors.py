"""What is wrong with a command line."""

from dayzero.errors import DayzeroError


class UsageError(DayzeroError):
    """A word that the command cannot take. Exit code 2, as where an option is misspelt."""

    default_code = "usage"
