"""What all commands of `tamis` say on their way, and how they end where something is in it."""

from __future__ import annotations

import logging
import sys

CONTINUED = ("build", "train", "push", "pull")  # these go on where they were


def again() -> str:
    """What the same command would do."""
    return f"the same command {'continues' if sys.argv[1] in CONTINUED else 'starts over'}"


def end(number: int, _: object) -> None:
    """On SIGTERM end as on Ctrl-C, so that no half of a file stays behind."""
    fail(f"ended by SIGTERM; {again()}", 128 + number)


def fail(message: str, code: int) -> None:
    """Say why on stderr, and end."""
    print(f"tamis: {message}", file=sys.stderr)  # noqa: T201 - the one place where errors reach the user
    sys.exit(code)


def tell_progress() -> None:
    """Let the parts that take long log how far they are."""
    for name in ("tamis.bench", "tamis.pipelines.build", "tamis.pipelines.repair", "tamis.trainer"):
        logging.getLogger(name).setLevel(logging.INFO)
