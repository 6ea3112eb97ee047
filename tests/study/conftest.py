from __future__ import annotations

import pytest


@pytest.fixture
def storage(tmp_path):
    return f"sqlite:///{tmp_path}/results/studies.db"
