"""The base of every error that can reach a user.

Each package derives its own tree in its `errors.py`; this one says what every error must know.

- `status`, `type`, `code` and `param` are what the OpenAI form needs; `retryable` is for us: may the
  same request be sent to another replica?
- Every error pickles (Ray carries them between processes) and keeps its fields when it does.
- A message says what to do and never repeats what the user sent beyond a field's name.
"""

from dayzero.errors.base import DayzeroError, InvalidRequestError

__all__ = ["DayzeroError", "InvalidRequestError"]
