"""Many engines behind one address, on Ray Serve: one replica per engine, on as many machines as Ray has.

    python -m photon.api.ray_serve --replicas 2 --port 8000
    serve run photon.api.ray_serve:application replicas=2

Needs the extra `ray`. A command, as app.py is: it reads flags and the clock. What runs is in `replicas.py`.
"""

# No `from __future__ import annotations`: Ray reads the annotation of `application` to convert its arguments.
import argparse
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import ray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from photon import EngineConfig, load_model
from photon.api import ApiConfig, read_key
from photon.api.config import MIB
from photon.api.replicas import NO_PAGE, Front, Replica, find_page
from photon.api.serving import choose_port, end_on_signals
from photon.errors import DeviceError, PhotonError

log = logging.getLogger(__name__)

TINY = str(Path(__file__).resolve().parents[2] / "assets" / "tiny")
NAME = "photon"
"""Of the application, in Ray's status and logs."""

ROUTER = "photon.api.relay.Router"

PAGE = ApiConfig(time.time, max_image_bytes=768 * MIB, max_open=256, max_open_bytes=2048 * MIB)
"""Requests to pages: 256 open for each replica, of which an idle page holds two and a working one up to six;
1 GB for one upload, 2 GB for all that are on their way.
"""


class Flags(BaseModel):
    """What can be set, on the command line and by `serve run`; checked once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    replicas: int = Field(1, ge=1, le=1000, description="engines; the fewest, where --max-replicas is more")
    max_replicas: int = Field(0, ge=0, le=1000, description="let Ray add engines under load, up to this many")
    model: str = Field(TINY, description="as app.py takes it, on every machine; without it, the embedded one")
    device: Literal["cpu", "cuda"] = Field("cpu", description="cpu, or cuda: one GPU for each replica")
    depth: int = Field(2, ge=1, le=2, description="steps in flight: 1 blocking, 2 pipelined")
    max_batch_size: int = Field(8, ge=1, le=32, description="rows of one decode step of each engine")
    api_key: str | None = Field(None, repr=False, description="key that programs must send, or @FILE")
    page: str = Field("app:Page", description="MODULE:CLASS of the page of each replica; none: no page")


def application(flags: Flags) -> serve.Application:
    """The front and its replicas, for `serve.run` and `serve run`.

    Raises:
        PhotonError: model, key or page is not what the flags say; one sentence, before anything starts.
    """
    load_model(flags.model)
    find_page(flags.page)
    most, has_page = max(flags.replicas, flags.max_replicas), flags.page != NO_PAGE
    one = ApiConfig(time.time)
    programs = replace(one, api_key=read_key(flags.api_key), max_open=most * one.max_open)
    visitors = replace(PAGE, max_open=most * PAGE.max_open)
    # One limit for both kinds; visitors, who cannot go elsewhere, must be far from it on any replica.
    room = one.max_open + has_page * 2 * PAGE.max_open
    scaling: dict[str, Any] = {"num_replicas": flags.replicas}
    if most > flags.replicas:
        bounds = {"min_replicas": flags.replicas, "max_replicas": most}
        scaling = {"autoscaling_config": {**bounds, "target_ongoing_requests": flags.max_batch_size}}
    replicas = serve.deployment(
        name="Replica",
        ray_actor_options={"num_cpus": 1, "num_gpus": int(flags.device == "cuda")},
        max_ongoing_requests=room,
        request_router_config={"request_router_class": ROUTER},
        **scaling,
    )(Replica)
    # Beyond max_open the gates refuse in the format of the routes, and so must be asked; Ray would queue.
    front = serve.deployment(
        name="Front",
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=2 * (programs.max_open + visitors.max_open),
    )(Front)
    engine = EngineConfig(depth=flags.depth, max_batch_size=flags.max_batch_size)
    bound = replicas.bind(flags.model, flags.device, engine, replace(one, max_open=room), flags.page)
    return front.bind(bound, programs, visitors if has_page else None)


def parse_flags(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """All flags of the command; see --help."""
    parser = argparse.ArgumentParser(
        prog="photon.api.ray_serve", description="Many engines behind one address, on Ray Serve."
    )
    for name, field in Flags.model_fields.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, default=field.default, metavar="X", help=field.description)
    parser.add_argument("--address", help="of a Ray cluster, or auto; without it, one on this machine alone")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on; 8000 without it")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Start the replicas, then serve until interrupted. Returns the exit status."""
    given = parse_flags(argv)
    try:
        flags = Flags(**{name: getattr(given, name) for name in Flags.model_fields})
        app = application(flags)
        choose_port(given.host, given.port)
        check_address(given.address)
    except ValidationError as error:
        problem = error.errors()[0]
        flag = str(problem["loc"][0]).replace("_", "-")
        return _refuse(f"--{flag} is {problem['input']!r}: {problem['msg'].lower()}.")
    except (PhotonError, OSError) as error:
        return _refuse(str(error))
    end_on_signals()
    try:
        start(given, flags)
        serve.run(app, name=NAME)
        print(f"{flags.replicas} replicas at http://{given.host}:{given.port}", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        return 0
    except DeviceError as error:
        return _refuse(str(error))
    except ConnectionError:
        return _refuse(f"No Ray answers at {given.address}; start it there with ray start --head.")
    except (RayError, RayServeException, RuntimeError) as error:
        log.debug("Ray's words", exc_info=error)
        return _refuse("The replicas did not start; the log that Ray names above says why.")
    finally:
        stop(given.address)
    return 0


def start(given: argparse.Namespace, flags: Flags) -> None:
    """Join a Ray cluster, or start one on this machine; then Ray Serve's proxy.

    Raises:
        DeviceError: this machine alone has not the GPUs that were asked for, and will not get them.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if given.address:
        ray.init(given.address, log_to_driver=False)
    else:
        # Ray counts CPUs to place replicas, no more: here they share what there is.
        num_cpus = max(flags.replicas, flags.max_replicas)
        ray.init("local", num_cpus=num_cpus, include_dashboard=False, log_to_driver=False)
        num_gpus = int(ray.cluster_resources().get("GPU", 0))
        if flags.device == "cuda" and num_gpus < flags.replicas:
            raise DeviceError(f"This machine has {num_gpus} GPUs; start fewer replicas, or join a cluster.")
    serve.start(http_options={"host": given.host, "port": given.port})


def stop(address: str | None) -> None:
    """End what `start` began: a Ray of our own whole, which waits for nobody; on a cluster of others our
    application, and Ray Serve itself only where nobody else has one.
    """
    if not ray.is_initialized():  # Ray would start a cluster to look for what to stop
        return
    if address and serve.status().applications.keys() <= {NAME}:
        serve.shutdown()
    elif address:
        serve.delete(NAME)
    ray.shutdown()


def check_address(address: str | None) -> None:
    """Ray itself would try for minutes. Raises OSError with the address."""
    host, colon, port = (address or "").rpartition(":")
    if not colon or "/" in host:  # none, auto, or what Ray has other words for
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        raise OSError(f"No Ray answers at {address}; start it there with ray start --head.") from error


def _refuse(sentence: str) -> int:
    print(f"photon.api.ray_serve: {sentence}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
