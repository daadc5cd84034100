"""The work of ``arcforge-serve``: loads a checkpoint and listens until it is told to stop."""

from __future__ import annotations

import ipaddress
import socket

import uvicorn

from arcforge_core.checkpoint.pretrained import find_checkpoint, load_with_tokenizer, open_checkpoint
from arcforge_core.cli.progress import say
from arcforge_core.errors import ConfigError
from arcforge_core.model.engine import build_engine, check_engine
from arcforge_core.ops.hardware import build_hardware
from arcforge_serving.configs import ServeConfig
from arcforge_serving.server.app import create_app


def serve(config: ServeConfig) -> None:
    """Serves until SIGINT (exit code 0) or SIGTERM; requests that have begun are finished first.

    Raises:
        CheckpointError: the checkpoint cannot be used.
        ConfigError: the address cannot be listened on, or the sizes do not fit the number format of the weights.
    """
    listener = listen(config.host, config.port)
    with listener:
        folder = find_checkpoint(config.checkpoint)
        name = config.served_name or folder.resolve().name
        check_engine(config.engine, open_checkpoint(folder))
        model, tokenizer = load_with_tokenizer(folder, build_hardware(config.hardware))
        engine = build_engine(config.engine, model)
        app = create_app(engine, tokenizer, model.config, name, config.max_batch_size, config.max_waiting)
        print(f"{name} at {url(listener)}/v1/completions; Ctrl-C stops", flush=True)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:  # uvicorn has shut down in order and passes the signal on
            say("stopped")


def listen(host: str, port: int) -> socket.socket:
    """Binds the address first of all, so that a taken port is known before a model is loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError("port", port, f"cannot listen on {host}: {error.strerror or error}") from error
    address = ipaddress.ip_address(listener.getsockname()[0])
    if not address.is_loopback:
        say(f"warning: {address} is reachable from other machines and there is no authentication")
    return listener


def url(listener: socket.socket) -> str:
    """Returns the address of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
