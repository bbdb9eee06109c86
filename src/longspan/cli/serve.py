"""``longspan serve``: OpenAI's API over one model, on documents that stay read."""

from __future__ import annotations

import re
import tempfile
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.cli.options import BUNDLED, Quiet, hushed, load_model, load_tokenizer, method_or_auto, notes, say
from longspan.errors import LongspanError

if TYPE_CHECKING:
    from longspan.serve.host import Host
    from longspan.serve.settings import ServerSettings

_NEEDED = ("fastapi", "multipart", "openai", "prometheus_client", "sse_starlette", "uvicorn")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def serve(
    model: Annotated[str, typer.Argument(help="A model folder, a hub name, or 'bundled'.", envvar="LONGSPAN_MODEL")],
    method: Annotated[
        str, typer.Option(help="A method, see `longspan methods`, or 'auto'.", envvar="LONGSPAN_METHOD")
    ] = "auto",
    documents: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the documents; unless given they go with the server.", envvar="LONGSPAN_DOCUMENTS"
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.", envvar="LONGSPAN_HOST")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535, envvar="LONGSPAN_PORT")] = 8000,
    api_key: Annotated[
        str | None, typer.Option(help="What requests have to show; best by its variable.", envvar="LONGSPAN_API_KEY")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The model's name in the API; else as given.", envvar="LONGSPAN_NAME")
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(help="The trained window in tokens; else the config's.", min=1, envvar="LONGSPAN_WINDOW"),
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="The longest prompt and answer in tokens.", min=1, envvar="LONGSPAN_LENGTH")
    ] = None,
    layout: Annotated[
        str, typer.Option(help="auto, chat or plain: where texts stand.", envvar="LONGSPAN_LAYOUT")
    ] = "auto",
    piece: Annotated[
        int, typer.Option(help="Tokens that are read at a time; others wait as long.", min=1, envvar="LONGSPAN_PIECE")
    ] = 1024,
    max_new_tokens: Annotated[
        int, typer.Option(help="Length of an answer unless asked.", min=1, envvar="LONGSPAN_MAX_NEW_TOKENS")
    ] = 256,
    max_running: Annotated[
        int, typer.Option(help="Requests that take turns.", min=1, envvar="LONGSPAN_MAX_RUNNING")
    ] = 32,
    max_queue: Annotated[
        int, typer.Option(help="Requests, and texts, that wait.", min=1, envvar="LONGSPAN_MAX_QUEUE")
    ] = 64,
    max_body: Annotated[str, typer.Option(help="Size of a request.", envvar="LONGSPAN_MAX_BODY")] = "64M",
    max_prompt: Annotated[
        str, typer.Option(help="Characters of a prompt; longer texts are uploaded.", envvar="LONGSPAN_MAX_PROMPT")
    ] = "8M",
    extract_seconds: Annotated[
        float, typer.Option(help="Time for the text of a PDF or HTML file.", min=1, envvar="LONGSPAN_EXTRACT_SECONDS")
    ] = 60,
    extract_memory: Annotated[str, typer.Option(help="Memory for the same.", envvar="LONGSPAN_EXTRACT_MEMORY")] = "2G",
    memory: Annotated[
        str, typer.Option(help="Conversations that are kept in memory.", envvar="LONGSPAN_MEMORY")
    ] = "1G",
    kv_dir: Annotated[
        Path | None, typer.Option(help="Folder for conversations beyond that.", envvar="LONGSPAN_KV_DIR")
    ] = None,
    kv_disk: Annotated[str, typer.Option(help="Size of those.", envvar="LONGSPAN_KV_DISK")] = "16G",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.", envvar="LONGSPAN_DTYPE")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...", envvar="LONGSPAN_DEVICE")] = "auto",
    demo: Annotated[bool, typer.Option("--demo", help="With a document already read.")] = False,
    quiet: Quiet = False,
) -> None:
    """Serve a model and its documents by OpenAI's API, with a page at /. Ctrl-C ends it when all is answered."""
    if any(find_spec(package) is None for package in _NEEDED):
        raise LongspanError("`longspan serve` takes packages of its own: pip install 'longspan[serve]'")
    from longspan.serve.settings import ServerSettings

    if layout not in ("auto", "chat", "plain"):
        raise LongspanError(f"--layout must be auto, chat or plain, not {layout!r}")
    console = notes(quiet)
    with ExitStack() as stack:
        if documents is None:
            documents = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="longspan-documents-")))
            say(console, "documents go with this server; --documents DIR keeps them")
        local = model != BUNDLED and Path(model).exists()
        source = str(Path(model).resolve()) if local else model
        settings = ServerSettings(
            model=name or model,
            source=source,
            documents=documents,
            host=host,
            port=port,
            api_key=api_key,
            piece=piece,
            max_new_tokens=max_new_tokens,
            max_length=length,
            max_running=max_running,
            max_queue=max_queue,
            max_body=_size("--max-body", max_body),
            max_prompt=_size("--max-prompt", max_prompt),
            extract_seconds=extract_seconds,
            extract_memory=_size("--extract-memory", extract_memory),
            memory=_size("--memory", memory),
            kv_dir=kv_dir,
            kv_disk=_size("--kv-disk", kv_disk),
        )
        with hushed(quiet):
            served = _host(settings, model, method, window, layout, dtype, device)
        from longspan.serve.run import serve as run

        run(served, demo=demo)


def _host(
    settings: ServerSettings, model: str, method: str, window: int | None, layout: str, dtype: str, device: str
) -> Host:
    """The model, loaded and extended, and all that serves it."""
    import longspan
    from longspan.serve.host import Host

    chosen = method_or_auto(method, (), None)
    loaded, tokenizer = load_model(model, window=window, dtype=dtype, device=device), load_tokenizer(model)
    longspan.extend(loaded, chosen, window=window, length=settings.max_length)
    return Host(loaded, tokenizer, settings, layout=layout)


def _size(option: str, text: str) -> int:
    """Bytes of a size such as 512M."""
    found = re.fullmatch(r"(\d{1,15})([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise LongspanError(f"{option} must be a size such as 512M or 16G, not {text!r}")
    return int(found[1]) * _UNITS[found[2].upper()]
