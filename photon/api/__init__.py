"""The engine over HTTP, for programs: Moondream's routes, OpenAI's chat route, health and metrics.

Plain ASGI routes, to be served by whatever serves the page; nothing here knows of the page.
"""

from photon.api.config import ApiConfig, read_key
from photon.api.metrics import Meter
from photon.api.server import routes

__all__ = ["ApiConfig", "Meter", "read_key", "routes"]
