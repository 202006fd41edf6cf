"""Errors and the warning of this package; each error also derives from a builtin it specialises."""

from __future__ import annotations

__all__ = [
    "CachePolicyError",
    "CorruptionError",
    "InternalError",
    "InvalidArgumentError",
    "KVCacheError",
    "KVCacheIOError",
    "KVCacheWarning",
    "LayerScheduleError",
    "NonFiniteError",
    "NotFoundError",
    "OutOfCapacityError",
    "UnsupportedError",
]


class KVCacheError(Exception):
    """Base of all errors of this package."""


class InvalidArgumentError(KVCacheError, ValueError):
    """A value, or a call out of order: the caller's mistake. Nothing was changed."""


class CachePolicyError(InvalidArgumentError):
    """A layer's cache policy is not valid."""


class LayerScheduleError(InvalidArgumentError):
    """A layer schedule is not valid."""


class NonFiniteError(InvalidArgumentError):
    """NaN or infinity where the storage format allows none; the message names the row."""


class NotFoundError(KVCacheError, LookupError):
    """An id, handle or name is not live."""


class OutOfCapacityError(KVCacheError, MemoryError):
    """A budget is full; the message tells what was asked and what is free. Nothing was changed."""


class CorruptionError(KVCacheError):
    """A file or record is not what it claims to be; it was refused and nothing was changed."""


class UnsupportedError(KVCacheError, NotImplementedError):
    """Understood, but not possible for this model, format or build."""


class KVCacheIOError(KVCacheError, OSError):
    """The operating system refused a read or write."""


class KVCacheWarning(UserWarning):
    """Something went wrong that costs speed and nothing else, such as a disk tier's full disk."""


class InternalError(KVCacheError, RuntimeError):
    """A bug in this package; please report it."""
