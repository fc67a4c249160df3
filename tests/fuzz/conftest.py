"""How many examples a property is tried on: few and always the same ones, or with DRAFTLAB_FUZZ=1 many and new ones.

python -m pytest tests/fuzz                          quick: every run tries the same examples
DRAFTLAB_FUZZ=1 python -m pytest tests/fuzz          thorough: minutes; a failing example is printed and kept in .hypothesis
"""

import os

from hypothesis import HealthCheck, Phase, settings

COMMON = {
    "deadline": None,  # machines are slow and shared
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
    "phases": [phase for phase in Phase if phase != Phase.explain],  # it traces, which Hydra takes for a debugger
}
settings.register_profile("quick", max_examples=25, derandomize=True, database=None, **COMMON)
settings.register_profile("thorough", max_examples=400, derandomize="CI" in os.environ, **COMMON)
settings.load_profile("thorough" if os.environ.get("DRAFTLAB_FUZZ") else "quick")
