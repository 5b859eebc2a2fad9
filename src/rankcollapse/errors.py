"""The one exception that a user is meant to read."""


class RankCollapseError(Exception):
    """Something outside the program is wrong; the message is one line: what, where, what to do.

    The command line prints it and exits with 1. Wrong arguments to a function are ValueError.
    """
