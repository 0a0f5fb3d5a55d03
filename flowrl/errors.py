"""The two ways in which flowrl stops on purpose.

::

    Exception
     +- ValueError
     |   +- UserError     a mistake in a config, a file or an argument; the command line exits with 2
     +- RuntimeError
         +- RunStopped    a run that found itself broken and says why; the command line exits with 3
"""


class UserError(ValueError):
    """A user's mistake. The message says what was wanted, what came, and what to write instead."""


class RunStopped(RuntimeError):
    """A run that stopped itself. The message is the diagnosis."""
