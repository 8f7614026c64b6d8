"""The serving side's errors.

DayzeroError
└── WeightsError   500  the model's files could not be made; the message says what to do
"""

from dayzero.errors import DayzeroError


class WeightsError(DayzeroError):
    """Raised from `weights.ensure_*`: no wheel, a full disk, or a folder that holds something else."""

    default_code = "weights"
