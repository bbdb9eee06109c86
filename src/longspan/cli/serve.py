"""``longspan serve``: OpenAI's API over one model, on documents that stay read."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longspan.cli import options
from longspan.cli.ask import computed_as
from longspan.cli.output import hushed, notes, refusals, say
from longspan.errors import LongspanError, one_line
from longspan.install import pip_install
from longspan.loading.models import load_model, load_tokenizer
from longspan.loading.names import origin

if TYPE_CHECKING:
    from longspan.methods import Method

_NEEDED = ("fastapi", "multipart", "openai", "prometheus_client", "sse_starlette", "uvicorn")


def _option(variable: str, help: str, **limits: Any) -> Any:
    """An option with an environment variable."""
    return typer.Option(help=help, envvar=f"LONGSPAN_{variable}", **limits)


@options.examples(
    "longspan serve bundled --demo --port 8001",
    "longspan methods | longspan read - --model bundled --out methods.longspan",
    "longspan serve bundled methods.longspan",
)
def serve(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help=options.MODEL, envvar="LONGSPAN_MODEL")],
    written: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[DOCUMENT]...",
            help="Documents that `longspan read` wrote, to serve as they are.",
            envvar="LONGSPAN_WRITTEN",
        ),
    ] = None,
    method: Annotated[
        str,
        _option(
            "METHOD",
            "A method, with parameters if needed, or 'auto'; `longspan methods` lists the methods; default: "
            "that of the first document, else auto.",
        ),
    ] = "auto",
    documents: Annotated[
        Path | None,
        options.new_path(
            "The folder of documents, those of `longspan read` included; default: one that is deleted at the end.",
            envvar="LONGSPAN_DOCUMENTS",
        ),
    ] = None,
    host: Annotated[str, _option("HOST", "The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, _option("PORT", "The port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    api_key: Annotated[
        str | None, _option("API_KEY", "The key of every request; the variable keeps it out of process lists.")
    ] = None,
    api_keys: Annotated[
        Path | None, _option("API_KEYS", "A file of further keys, one a line.", exists=True, dir_okay=False)
    ] = None,
    name: Annotated[str | None, _option("NAME", "The model's name in the API; default: MODEL.")] = None,
    window: Annotated[
        int | None, _option("WINDOW", "The trained window in tokens; default: from the config.", min=1)
    ] = None,
    calibration: Annotated[
        Path | None,
        _option("CALIBRATION", "A file of reduced scores, written by `longspan calibrate`; default: exact scores."),
    ] = None,
    length: Annotated[
        int | None, _option("LENGTH", "The longest prompt with its answer, in tokens; default: the method's.", min=1)
    ] = None,
    layout: Annotated[
        str, _option("LAYOUT", "The layout of documents and prompts: auto, chat, instructed, quoted or plain.")
    ] = "auto",
    prefill_chunk: Annotated[
        int, _option("PREFILL_CHUNK", "Tokens of a prompt or text per forward; other requests wait for its end.", min=1)
    ] = 1024,
    max_new_tokens: Annotated[
        int, _option("MAX_NEW_TOKENS", "The length of an answer in tokens if the request states none.", min=1)
    ] = 256,
    max_running: Annotated[
        int, _option("MAX_RUNNING", "The largest number of requests that are answered in turns.", min=1)
    ] = 32,
    max_queue: Annotated[
        int, _option("MAX_QUEUE", "The largest number of waiting requests, and of waiting texts.", min=1)
    ] = 64,
    max_body: Annotated[str, _option("MAX_BODY", "The largest size of a request in bytes.")] = "64M",
    max_prompt: Annotated[
        str, _option("MAX_PROMPT", "The largest size of a prompt in characters; upload longer texts as documents.")
    ] = "8M",
    max_connections: Annotated[
        int, _option("MAX_CONNECTIONS", "The largest number of requests at a time, the waiting ones included.", min=1)
    ] = 256,
    max_address_connections: Annotated[
        int, _option("MAX_ADDRESS_CONNECTIONS", "The largest number of requests of one address at a time.", min=1)
    ] = 128,
    head_seconds: Annotated[
        float, _option("HEAD_SECONDS", "The time limit in seconds for the head of a request to come.", min=0.1)
    ] = 10,
    body_seconds: Annotated[
        float, _option("BODY_SECONDS", "The same for its body; each 1,024 bytes of it give it a second more.", min=0.1)
    ] = 30,
    extract_seconds: Annotated[
        float, _option("EXTRACT_SECONDS", "The time limit in seconds to extract the text of a PDF or HTML file.", min=1)
    ] = 60,
    extract_memory: Annotated[
        str, _option("EXTRACT_MEMORY", "The memory limit in bytes to extract the text of a PDF or HTML file.")
    ] = "2G",
    kv_tier: Annotated[
        str,
        _option(
            "KV_TIER", "The storage of caches in use: device, host or disk; auto moves them when memory is nearly full."
        ),
    ] = "device",
    memory: Annotated[str, _option("MEMORY", "The size in bytes of all caches of conversations in memory.")] = "1G",
    kv_dir: Annotated[
        Path | None,
        options.new_path(
            "The folder for caches that --memory does not hold; default: they are dropped.", envvar="LONGSPAN_KV_DIR"
        ),
    ] = None,
    kv_disk: Annotated[str, _option("KV_DISK", "The size in bytes of all caches in --kv-dir.")] = "16G",
    draft: Annotated[
        str | None,
        _option("DRAFT", "Draft tokens while one request is answered, as of `longspan generate`: lookup or auto."),
    ] = None,
    dtype: Annotated[
        str, _option("DTYPE", "The dtype to compute in: float32, bfloat16 or float16; auto keeps the checkpoint's.")
    ] = "auto",
    weights: Annotated[
        str,
        _option(
            "WEIGHTS",
            "The form of the matrices: as-is, int8, int4, fp32, bf16 or fp16; auto keeps what the checkpoint has.",
        ),
    ] = "auto",
    device: Annotated[
        str, _option("DEVICE", "The device: cpu, cuda, ...; auto is a CUDA GPU if there is one, else the CPU.")
    ] = "auto",
    log_format: Annotated[
        str, _option("LOG_FORMAT", "The form of the log's lines: text or json; json implies --quiet.")
    ] = "text",
    demo: Annotated[
        bool, typer.Option("--demo", help="Start with a document that was already read.", envvar="LONGSPAN_DEMO")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only the result and errors.", envvar="LONGSPAN_QUIET")
    ] = False,
) -> None:
    """Serve a model and its documents through OpenAI's API, with a page at /. Ctrl-C stops it once all is answered."""
    if any(find_spec(package) is None for package in _NEEDED):
        raise LongspanError(f"`longspan serve` requires more packages: {pip_install('serve')}")
    from longspan.documents.folder import CALIBRATION, Folder, placed
    from longspan.documents.layout import NAMED
    from longspan.serve.documents.written import first_facts
    from longspan.serve.logs import FORMATS
    from longspan.serve.settings import ServerSettings
    from longspan.serve.sockets import bound

    if layout not in (names := ("auto", "plain", *NAMED)):
        raise LongspanError(f"--layout must be {', '.join(names[:-1])} or {names[-1]}, not {layout!r}")
    if kv_dir is None and options.given(context, ("kv_disk",)):
        raise LongspanError("--kv-disk limits --kv-dir, which is not given: without --kv-dir, caches are dropped")
    if log_format not in FORMATS:
        raise LongspanError(f"--log-format must be {' or '.join(FORMATS)}, not {log_format!r}")
    keys = (() if api_key is None else (api_key,)) + (() if api_keys is None else _keys_in(api_keys))
    quiet = quiet or log_format == "json"
    console = notes(quiet)
    first = first_facts(documents, written or ())
    for path, words in ((Path(model), "name its model before it"), (documents, "name it without --documents")):
        if path is not None and Folder(placed(path)).has_document():
            raise LongspanError(f"{path} is a document: {words}, as in `longspan serve MODEL {path}`")
    with ExitStack() as stack:
        if documents is None:
            documents = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="longspan-documents-")))
            say(console, "documents go with this server; --documents DIR keeps them")
        settings = ServerSettings(
            model=name or model,
            source=origin(model),
            documents=documents,
            written=tuple(written or ()),
            host=host,
            port=port,
            api_keys=keys,
            prefill_chunk=prefill_chunk,
            max_new_tokens=max_new_tokens,
            max_length=length,
            max_running=max_running,
            max_queue=max_queue,
            max_body=options.size("--max-body", max_body),
            max_prompt=options.size("--max-prompt", max_prompt),
            max_connections=max_connections,
            max_address_connections=max_address_connections,
            head_seconds=head_seconds,
            body_seconds=body_seconds,
            extract_seconds=extract_seconds,
            extract_memory=options.size("--extract-memory", extract_memory),
            memory=options.size("--memory", memory),
            kv_dir=kv_dir,
            kv_disk=options.size("--kv-disk", kv_disk),
            log_format=log_format,
        )
        sockets = stack.enter_context(bound(host, port))
        with hushed(quiet), refusals():
            import longspan
            from longspan.documents.method import method_of
            from longspan.memory import check_tier
            from longspan.methods.parse import written as written_method
            from longspan.serve.host import Host

            chosen: Method | str = options.method_or_auto(method, (), None)
            if first is not None and not options.given(context, ("method",)):
                place, facts = first
                chosen, window = method_of(facts), facts.window if window is None else window
                dtype, weights = computed_as(facts, dtype, weights)
                length = None  # the method was set for its length
                if calibration is None and facts.calibration_sha256:
                    calibration = place / CALIBRATION
                say(console, f"the method is that of {place}: {written_method(chosen)}; --method sets another")
            check_tier(kv_tier, None)  # type: ignore[arg-type]  # which is what it checks
            reduced = None if calibration is None else longspan.Calibration.load(calibration)
            loaded = load_model(model, window=window, dtype=dtype, weights=weights, device=device, quiet=quiet)
            tokenizer = load_tokenizer(model, loaded)
            report = longspan.extend(
                loaded, chosen, window=window, calibration=reduced, length=length,
                kv_tier=kv_tier, draft=draft,  # type: ignore[arg-type]  # checked above, and by extend
                kv_dir=kv_dir if kv_tier in ("disk", "auto") or chosen == "auto" else None,  # "auto" may choose a tier
            )  # fmt: skip
            for warning in report.warnings:
                say(console, f"note: {warning}")
            served = Host(loaded, tokenizer, settings, layout=layout)
        from longspan.serve.run import serve as run

        run(served, sockets, demo=demo)


def _keys_in(file: Path) -> tuple[str, ...]:
    """The keys in a file, one a line; empty lines, and comments that begin with #, are none."""
    try:
        lines = map(str.strip, file.read_text(encoding="utf-8-sig").splitlines())
        keys = tuple(line for line in lines if line and not line.startswith("#"))
    except (OSError, UnicodeDecodeError) as error:
        raise LongspanError(f"--api-keys {file} cannot be read: {one_line(error)}") from None
    if not keys:
        raise LongspanError(f"--api-keys {file} has no key; write one a line")
    return keys
