"""Answers as models and engines really give them (KIMI_K3 section 4, FIELD_REPORTS classes A and B), and what they come to."""

from tests.unit.kimi_k3.cases.arguments import ARGUMENTS
from tests.unit.kimi_k3.cases.calls import CALL_CASES
from tests.unit.kimi_k3.cases.case import Case
from tests.unit.kimi_k3.cases.channels import CHANNELS
from tests.unit.kimi_k3.cases.choices import CHOICES
from tests.unit.kimi_k3.cases.markers import MARKERS

CASES = [*CHANNELS, *MARKERS, *CALL_CASES, *CHOICES, *ARGUMENTS]

__all__ = ["CASES", "Case"]
