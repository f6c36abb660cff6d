"""The command ``bmoe``: read the prompt, open the source, load the model, stream the answer."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from attrs import define, field

from bmoe_core.accounts import Accounts
from bmoe_core.arguments import AUTO, GATE_COST, Arguments, parse
from bmoe_core.console import Progress, TextStream, abandon_stdout, say, tolerate_encodings
from bmoe_core.csv_log import CsvLog
from bmoe_core.errors import BmoeError, PromptTooLongError, RunError, UsageError, summarize
from bmoe_core.files import OutputFile, read_prompt
from bmoe_core.footprint import Footprint
from bmoe_core.gate import CostGate
from bmoe_core.listing import describe_sources
from bmoe_core.loop import Generation, generate
from bmoe_core.models import demo_model
from bmoe_core.moe.options import StreamOptions
from bmoe_core.new_source import write_new_source
from bmoe_core.routing.cache import CacheSize
from bmoe_core.sources import NO_SOURCE, OpenSource, open_source
from bmoe_core.telemetry import RunRecord

if TYPE_CHECKING:
    from bmoe_core.moe.stream import ExpertStream
    from bmoe_core.routing.tap import RouterTap
    from bmoe_core.target.llama import LlamaTarget
    from bmoe_core.target.model import LlamaModel

MAX_REFUSAL_LINES = 3
EXIT_INTERRUPTED = 130
EXIT_CLOSED_PIPE = 141
STDOUT = "-"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status, see docs/reference/command-line.md."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    tolerate_encodings()
    try:
        if arguments[:1] == ["sources"]:
            return _list_sources(arguments[1:])
        if arguments[:1] == ["new-source"]:
            return _new_source(arguments[1:])
        if arguments[:1] == ["bench"]:
            return _bench(arguments[1:])
        return _Run(parse(arguments)).execute()
    except BmoeError as error:
        lines = str(error).splitlines()[:MAX_REFUSAL_LINES]
        say("bmoe: " + "\n".join(lines))
        return error.exit_status
    except KeyboardInterrupt:
        say("bmoe: interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        abandon_stdout()
        return EXIT_CLOSED_PIPE


def _list_sources(arguments: Sequence[str]) -> int:
    if arguments and not {"-h", "--help"}.isdisjoint(arguments):
        print("usage: bmoe sources\n\nLists the installed draft sources and their options.")
        return 0
    if arguments:
        raise UsageError(f"`bmoe sources` takes no arguments, and {arguments[0]!r} was given")
    TextStream(sys.stdout).write("".join(f"{line}\n" for line in describe_sources()).encode())
    return 0


def _new_source(arguments: Sequence[str]) -> int:
    TextStream(sys.stdout).write(write_new_source(arguments).encode())
    return 0


def _bench(arguments: Sequence[str]) -> int:
    missing = [name for name in ("rich", "matplotlib") if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"bmoe bench needs {' and '.join(missing)}: pip install 'bmoe-core[bench]'"
        )
    from bmoe_core.bench.main import bench

    return bench(arguments)


@define(eq=False)
class _Run:
    """One generation, from its arguments to its report."""

    arguments: Arguments
    progress: Progress = field(init=False)
    accounts: Accounts = field(init=False)
    gate: CostGate | None = field(default=None, init=False)
    warnings: list[str] = field(factory=list, init=False)
    load_s: float = field(default=0.0, init=False)
    record_file: OutputFile | None = field(default=None, init=False)
    csv_file: OutputFile | None = field(default=None, init=False)
    streaming: StreamOptions | None = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.progress = Progress(sys.stderr, enabled=not self.arguments.options.quiet)
        self.streaming = StreamOptions.chosen(self.arguments.options)

    def execute(self) -> int:
        """Everything that can be refused is, before the model loads; returns the exit status."""
        name, options = self.arguments.source, self.arguments.options
        if name is not None and options.gate == GATE_COST:
            self.gate = CostGate()
        source = None if name is None else open_source(name, self.arguments.source_options)
        prompt = read_prompt(options.prompt, options.file)
        with contextlib.ExitStack() as stack:
            stack.callback(self.progress.clear)
            self._open_files(stack)
            if options.model is None:
                options.model = demo_model()
                if not options.quiet:
                    say(
                        "bmoe: no model was given (-m): this is the demo model, which knows nothing"
                    )
            target, tokens = self._load(stack, source, prompt)
            return self._generate(target, tokens, source)

    def _open_files(self, stack: contextlib.ExitStack) -> None:
        options = self.arguments.options
        if options.json not in (None, STDOUT):
            self.record_file = OutputFile(options.json)
            stack.callback(self.record_file.close)
        if options.csv is not None:
            self.csv_file = OutputFile(options.csv)
            stack.callback(self.csv_file.close)
        if self.record_file and self.csv_file and self.csv_file.is_same_file(self.record_file):
            raise UsageError(f"--csv and --json both write to {options.csv}: give them two files")

    def _load(
        self, stack: contextlib.ExitStack, source: OpenSource | None, prompt: str
    ) -> tuple[LlamaTarget, list[int]]:
        from bmoe_core.target.llama import LlamaTarget, default_n_ctx
        from bmoe_core.target.model import LlamaModel

        options, started = self.arguments.options, time.perf_counter()
        stream = self._open_stream(stack)
        model = stack.enter_context(
            LlamaModel(
                options.model,
                prepare=_preparing(source, stream),
                on_progress=lambda share: self.progress.show(f"loading the model: {share:.0%}"),
            )
        )
        if stream is not None:
            stream.attach(model)
        tokens = model.tokenize(prompt)
        n_ctx = options.ctx_size or default_n_ctx(model)
        self._check_context(model, len(tokens), n_ctx)
        tap = self._make_tap(model, stream)
        target = stack.enter_context(
            LlamaTarget(
                model,
                n_ctx=n_ctx,
                max_draft=min(options.draft, n_ctx) if source else 0,
                n_threads=options.threads,
                # Snapshots slow every decode, a checkpoint only those that draft.
                rollback="snapshots" if self.gate is None else "checkpoint",
                prepare=source.prepare_context if source else None,
                tap=tap,
            )
        )
        if source is not None:
            stack.callback(self._close, source)
            source.open(target)
            if target.max_rollback < options.draft and not self.arguments.width_is_auto:
                self._warn(
                    f"drafts are cut to {target.max_rollback} tokens, the most that can be taken "
                    "back here"
                )
        self.load_s = time.perf_counter() - started
        self._open_accounts(model, target, source, tap, len(tokens), stream)
        return target, tokens

    def _open_stream(self, stack: contextlib.ExitStack) -> ExpertStream | None:
        if self.streaming is None:
            return None
        from bmoe_core.moe.dropping import DroppingStream
        from bmoe_core.moe.stream import ExpertStream

        kind = ExpertStream if self.streaming.drop_below is None else DroppingStream
        return stack.enter_context(kind.open(self.arguments.options.model, self.streaming))

    def _make_tap(self, model: LlamaModel, stream: ExpertStream | None) -> RouterTap | None:
        options = self.arguments.options
        if not model.n_expert or not (options.routing or options.cache_mb or stream):
            return None
        from bmoe_core.routing.tap import RouterTap

        return RouterTap(stream)

    def _open_accounts(
        self,
        model: LlamaModel,
        target: LlamaTarget,
        source: OpenSource | None,
        tap: RouterTap | None,
        n_prompt: int,
        stream: ExpertStream | None,
    ) -> None:
        options = self.arguments.options
        cache_size = None if stream is None else stream.cache_size
        if stream is None and options.cache_mb is not None:
            automatic = options.cache_mb == AUTO
            cache_size = CacheSize.automatic() if automatic else CacheSize(options.cache_mb)
        self.accounts = Accounts(
            source=self.arguments.source or NO_SOURCE,
            tap=tap,
            cache_size=cache_size,
            gate=self.gate,
            csv=CsvLog(self.csv_file, options.n_predict) if self.csv_file else None,
            no_experts=tap is None and (options.routing or cache_size is not None),
        )
        if self.accounts.csv is not None:
            facts = _facts(model, target, source)
            facts["n_prompt"], facts["n_predict"] = n_prompt, options.n_predict
            facts["draft"] = min(options.draft, target.max_rollback)
            facts["gate"] = options.gate
            facts["modelled_cache"] = cache_size if stream is None and cache_size else ""
            facts |= stream.facts if stream else {}
            self.accounts.csv.begin(facts)

    def _check_context(self, model: LlamaModel, n_prompt: int, n_ctx: int) -> None:
        if n_prompt >= n_ctx:
            raise PromptTooLongError(n_prompt, n_ctx)
        if n_ctx > model.n_ctx_train:
            self._warn(
                f"the model was trained on {model.n_ctx_train} positions, and beyond them its "
                f"answers get worse; the context has {n_ctx} (-c)"
            )

    def _generate(
        self, target: LlamaTarget, tokens: Sequence[int], source: OpenSource | None
    ) -> int:
        options = self.arguments.options
        generation = generate(
            target,
            tokens,
            source=source,
            n_predict=options.n_predict,
            width=options.draft,
            gate=self.gate,
            strict=options.strict,
            on_prefill=self._on_prefill,
        )
        text = TextStream(None if options.json == STDOUT else sys.stdout)
        failure: RunError | None = None
        interrupted = False
        try:
            for step in generation:
                self.progress.clear()
                self.accounts.add(step, generation.wall_s)
                text.write(target.detokenize(step.tokens))
        except RunError as error:
            failure = error
        except KeyboardInterrupt:
            interrupted = True
            generation.close()
        self.progress.clear()
        try:
            text.finish()
        except RunError as error:
            failure = failure or error
        if generation.source_failure is not None and failure is None:
            self._warn(str(generation.source_failure))
        if failure is not None:
            self.warnings.append(str(failure))
        self.accounts.finish(generation.finish_reason.value)
        csv = self.accounts.csv
        if csv is not None and csv.failure is not None:
            self._warn(csv.failure)
        self._report(target, source)
        try:
            self._record(generation, text.text)
        except RunError as error:
            failure = failure or error
        if failure is not None:
            say(f"bmoe: {failure}")
        if interrupted:
            return EXIT_INTERRUPTED
        return 0 if failure is None else failure.exit_status

    def _on_prefill(self, n_done: int, n_prompt: int) -> None:
        self.progress.show(f"reading the prompt: {n_done} of {n_prompt} tokens")
        if n_done == n_prompt:
            self.accounts.end_prefill()

    def _report(self, target: LlamaTarget, source: OpenSource | None) -> None:
        if self.arguments.options.quiet:
            return
        lines = self.accounts.lines()
        if source is not None:
            lines += source.report()
        if target.rollback_mib:
            lines.append(f"rollback: {target.rollback_mib:.2f} MiB of saved recurrent states")
        for line in lines:
            say(line)

    def _record(self, generation: Generation, text: str) -> None:
        options = self.arguments.options
        if options.json is None:
            return
        record = RunRecord(
            source=self.arguments.source or NO_SOURCE,
            model=str(options.model),
            n_prompt=generation.n_prompt,
            summary=self.accounts.summary,
            wall_s=generation.wall_s,
            prefill_s=generation.prefill_s,
            load_s=self.load_s,
            footprint=Footprint.now(),
            routing=self.accounts.routing_record(),
            gate=self.accounts.gate_record(),
            finish_reason=generation.finish_reason.value,
            warnings=self.warnings,
            tokens=generation.tokens[generation.n_prompt :],
            text=text,
        )
        if options.json == STDOUT:
            # Escaped, since stdout may not be able to show every character.
            TextStream(sys.stdout).write(json.dumps(record.to_dict(), indent=2).encode() + b"\n")
            return
        assert self.record_file is not None
        self.record_file.write(json.dumps(record.to_dict(), ensure_ascii=False, indent=2) + "\n")

    def _close(self, source: OpenSource) -> None:
        try:
            source.close()
        except (Exception, SystemExit) as error:
            say(f"bmoe: warning: {source.name}: close raised {summarize(error)}")

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
        self.progress.clear()
        say(f"bmoe: warning: {text}")


def _preparing(*parts: OpenSource | ExpertStream | None) -> Callable[[Any], None]:
    """Lets each part that there is set fields of the model's parameters."""

    def prepare(model_params: Any) -> None:
        for part in parts:
            if part is not None:
                part.prepare_model(model_params)

    return prepare


def _facts(model: LlamaModel, target: LlamaTarget, source: OpenSource | None) -> dict[str, object]:
    """What runs, as resolved."""
    name = source.name if source is not None else NO_SOURCE
    options = source.options if source is not None else {}
    return {
        "engine": f"bmoe-core {version('bmoe-core')}",
        "llama_cpp_python": version("llama-cpp-python"),
        "model": model.path,
        "architecture": model.architecture,
        "n_layer": model.n_layer,
        "n_expert": model.n_expert,
        "n_expert_used": model.n_expert_used,
        "n_threads": target.n_threads,
        "n_ctx": target.n_ctx,
        "spec": name,
        **{f"{name}.{option}": value for option, value in options.items()},
    }
