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
    r"""Let clients of Hugging Face and of S3 load a checkpoint as the model that a conversion would make of it; nothing is written.

    Its files have the names, sizes and bytes that reshard convert with the same options would give them (--to: safetensors, unless it says
    otherwise). Headers are made at once, and tensors are read, turned and cast as a client asks for them, so that vLLM, SGLang and
    transformers load what training wrote without a second copy. They need config.json and a tokenizer, too: --config or --carry.

    stdout gets the lines that a client needs, once it can connect. SRC must stay as it is: a client gets an error where it was changed,
    never mixed bytes, and stderr says so. Ctrl-C ends it, with 0. Needs the packages of the extra 'server'.

    Options:
        --json: Print one JSON object with the addresses instead; errors are JSON, too.

    Resources:
        --max-memory SIZE: The buffers of one read stay below this, such as 256MiB. Default: a quarter of the memory, 1GiB at most. Besides,
            256MiB of what was read last are kept.

    Serving:
        --name NAME: Clients load views/NAME. Characters that no name of a model has become hyphens. Default: that of SRC's folder.
        --host ADDRESS: Address to listen on; one that other machines reach needs --token-file.
        --port N: Port; 0 takes a free one.
        --token-file FILE: A file with a token that every client must send (HF_TOKEN, or the secret of S3). Without it none is needed.

    Examples:
        $ reshard view ckpt/1000 --map to_hf.yaml
        $ reshard view ckpt --step latest --map to_hf.yaml --cast float=bfloat16 --name run7
        $ reshard view ckpt/1000 --select '^params/' --host 0.0.0.0 --token-file token
    """
    need_packages("view")
    if host not in ("127.0.0.1", "::1", "localhost") and token_file is None:
        raise Misuse(
            f"--host is {host!r}, which other machines reach, and no token is asked for; listen on 127.0.0.1, or give --token-file with "
            "a token that clients send"
        )
    token = token_in(token_file) or "" if token_file else ""
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
    endpoint, s3, model = f"{url}/hf", f"{url}/s3", f"views/{name}"
    if as_json:
        print_answer("view", source=found.source, model=model, revision=found.revision, endpoint=endpoint, s3_endpoint=s3, warnings=found.warnings,
                     files=[{"path": path, "nbytes": file.nbytes} for path, file in found.files.items()])  # fmt: skip
    else:
        warn(found.warnings)
        size = f"{count_text(len(found.files), 'file')}, {format_bytes(found.nbytes)}"
        say(f"{found.source}: {size}; Ctrl-C ends it")
        secret = f'"$(cat {shlex.quote(str(token_file))})"' if token_file else "view"
        print(f"export HF_ENDPOINT={endpoint}{f' HF_TOKEN={secret}' * bool(token_file)}\nhf download {model}")  # fmt: skip
        print(f"export AWS_ENDPOINT_URL={s3} AWS_ACCESS_KEY_ID=view AWS_SECRET_ACCESS_KEY={secret}\naws s3 sync s3://{model} {name}")  # fmt: skip
    sys.stdout.flush()  # a client may wait for it at the other end of a pipe
