"""Hypothesis' settings on a shared machine: no example fails because of the time it takes.

`tests/conftest.py` imports this module; a run without conftest loads the module as a plugin of pytest.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")
