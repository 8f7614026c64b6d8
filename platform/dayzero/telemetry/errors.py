"""Telemetry's errors.

DayzeroError
└── TelemetrySetupError        500  the OTEL_* variables ask for what we do not have; only a start can meet it
"""

from dayzero.errors import DayzeroError


class TelemetrySetupError(DayzeroError):
    """Raised by `setup`; the message names the variable and what to set."""
