"""The operator that is a function of the user's own."""

from __future__ import annotations

from ...errors import UsageError
from .call import Call, Columns
from .settings import FunctionSettings


def call_function(columns: Columns, call: Call[FunctionSettings]) -> Columns:
    """What the function makes of the sample, in a worker process; the key of the call is its seed."""
    name = call.settings.function
    if call.user is None:
        raise UsageError(name, "there are no workers to call it in", "give the engine a UserCode")
    return call.user.call(name, columns, call.key, call.sample())
