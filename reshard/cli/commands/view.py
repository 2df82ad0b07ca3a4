"""``reshard view``."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import reshard
from reshard.api.views import OF_A_RUN
from reshard.cli.commands.serve import need_packages
from reshard.cli.console import print_answer, say, warn
from reshard.cli.groups import Requantized
from reshard.cli.options import Misuse, Size, Source
from reshard.cli.remote import token_in
from reshard.cli.target_options import (
    check_words,
    given_options,
    library_options,
    takes_target_options,
)
from reshard.cli.text import count_text
from reshard.geometry.sizes import format_bytes


@takes_target_options(without=(*OF_A_RUN, "target"))
def view(
    src: Source,
    *,
    chosen: Requantized,
    max_memory: Size = None,
    name: str | None = None,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8080,
    token_file: Path | None = None,
    as_json: bool = False,
    **given: Any,
) -> None:
    r"""Serve the files that a conversion would write to clients of Hugging Face, and write none of them.

    The files have the names, sizes and bytes that reshard convert with the same options would give them. Headers and config.json are made
    at once; tensors are read, decoded and cast as a client asks for them, and only those that it asks for. So vLLM, SGLang and transformers
    load a training checkpoint as the model that they know, without a second copy. stdout gets two lines that a client needs.

    SRC must stay as it is: where it was changed a client gets an error, never mixed bytes, and stderr says so. End it with Ctrl-C; it
    exits with 0. Needs the packages of the extra 'server'; reshard serve keeps views of whole runs, with tokens for each caller.

    Options:
        --json: Print one JSON object with the addresses in place of the two lines; errors are JSON, too.

    Resources:
        --max-memory SIZE: The buffers of one read stay below this, such as 256MiB. Default: a quarter of the memory, 1GiB at most.

    Serving:
        --name NAME: Clients load views/NAME. Characters that no name of a model has become hyphens. Default: that of SRC's folder.
        --host ADDRESS: Address to listen on; one that other machines reach needs --token-file.
        --port N: Port; 0 takes a free one.
        --token-file FILE: A file with a token that every client must send (HF_TOKEN). Without it none is needed.

    Examples:
        $ reshard view ckpt/1000 --select '^params/' --port 8123
        $ reshard view ckpt --step latest --map llama --config models/llama \
          --cast float=bfloat16 --name llama
        $ reshard view gs://bucket/run/1000 --map llama --config models/llama \
          --host 0.0.0.0 --token-file token
    """
    need_packages("view")
    if host not in ("127.0.0.1", "::1", "localhost") and token_file is None:
        raise Misuse(
            f"--host is {host!r}, which other machines reach, and no token is asked for; listen on 127.0.0.1, or give --token-file with "
            "a token that clients send"
        )
    token = None if token_file is None else token_in(token_file)
    options, layout, mesh = given_options(given), given["layout"], given["mesh"]
    check_words(options, [mesh])
    from reshard_server.faces.one_view import clean_name, make_app
    from reshard_server.observability.logs import set_up_logs
    from reshard_server.serve import address_of, listen, run_server
    from reshard_server.settings import Settings

    src, how = chosen.of(src), {**library_options(options), **chosen.option, "max_memory": max_memory}  # fmt: skip
    model = clean_name(name or Path(src).name) or "view"
    with listen(host, port) as listening, reshard.open_view(src, layout=layout, mesh=mesh, **how) as found:  # fmt: skip
        set_up_logs("warning", "text")
        told = partial(_tell, found, model, address_of(listening), token_file, as_json)
        run_server(make_app(model, found, token), Settings.model_construct(), listening, told)


def _tell(
    found: reshard.CheckpointView, name: str, url: str, token_file: Path | None, as_json: bool
) -> None:
    """Prints what a client needs: JSON, or lines for a shell."""
    endpoint, model = f"{url}/hf", f"views/{name}"
    if as_json:
        files = {path: file.nbytes for path, file in found.files.items()}
        print_answer(
            "view", source=found.source, model=model, revision=found.revision, endpoint=endpoint, files=files, warnings=found.warnings
        )  # fmt: skip
    else:
        warn(found.warnings)
        size = f"{count_text(len(found.files), 'file')}, {format_bytes(found.nbytes)}"
        say(f"{found.source}: {size}; Ctrl-C ends it")
        secret = f' HF_TOKEN="$(cat {shlex.quote(str(token_file))})"' if token_file else ""
        print(f"export HF_ENDPOINT={endpoint}{secret}\nhf download {model}")
    sys.stdout.flush()  # a client may wait for it at the other end of a pipe
