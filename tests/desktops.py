"""The back-ends of desktops, for tests that must hold with each of them."""

import pytest

BUBBLEWRAP = pytest.param("bubblewrap", marks=pytest.mark.gui)
DOCKER = pytest.param("docker", marks=pytest.mark.desktop_image)
BACKENDS = (BUBBLEWRAP, DOCKER)
