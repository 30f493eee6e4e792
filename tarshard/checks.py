"""Pure: refuses values that cannot be, by the name that the caller knows them by."""

import operator
from collections.abc import Iterable

from tarshard.errors import UsageError


def whole_number(name: str, value: object, *, at_least: int, at_most: int = 2**63 - 1) -> None:
    """Raise `UsageError` unless the value is a whole number from one to the other."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # that is what is asked here
    except TypeError:
        raise UsageError(f"{name} must be a whole number, got {value!r}") from None
    if number < at_least:
        raise UsageError(f"{name} must be at least {at_least}, got {number}")
    if number > at_most:
        raise UsageError(f"{name} must be at most {at_most:,}, got {number}")


def one_of(name: str, value: object, allowed: Iterable[str]) -> None:
    """Raise `UsageError` unless the value is one of those allowed."""
    names = list(allowed)
    if value not in names:
        raise UsageError(f"{name} must be one of {', '.join(names)}, got {value!r}")
