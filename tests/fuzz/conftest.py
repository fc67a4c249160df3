"""How many examples a property is tried on: few and always the same ones, or with DRAFTLAB_FUZZ=1 many and new ones.

python -m pytest tests/fuzz                          quick: every run tries the same examples
DRAFTLAB_FUZZ=1 python -m pytest tests/fuzz          thorough: minutes; a failing example is printed and kept in .hypothesis
"""

import os

from hypothesis import HealthCheck, settings

slow_machines = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "quick", max_examples=25, deadline=None, derandomize=True, suppress_health_check=slow_machines
)
settings.register_profile(
    "thorough", max_examples=400, deadline=None, derandomize="CI" in os.environ, suppress_health_check=slow_machines
)
settings.load_profile("thorough" if os.environ.get("DRAFTLAB_FUZZ") else "quick")
