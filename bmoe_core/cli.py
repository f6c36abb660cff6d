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
from bmoe_core.answer_options import sampling_of
from bmoe_core.arguments import AUTO, GATE_COST, Arguments, parse
from bmoe_core.console import Progress, TextStream, abandon_stdout, say, tolerate_encodings
from bmoe_core.csv_log import CsvLog
from bmoe_core.errors import BmoeError, RunError, UsageError
from bmoe_core.files import OutputFile, read_prompt
from bmoe_core.footprint import Footprint
from bmoe_core.gate import CostGate
from bmoe_core.interrupts import exit_status_of, raising_on_sigterm
from bmoe_core.listing import describe_sources
from bmoe_core.models import demo_model
from bmoe_core.moe.options import StreamOptions
from bmoe_core.new_source import write_new_source
from bmoe_core.routing.cache import CacheSize
from bmoe_core.sampling import Sampling
from bmoe_core.sources import NO_SOURCE, OpenSource, open_source
from bmoe_core.steps import Step
from bmoe_core.telemetry import RunRecord

if TYPE_CHECKING:
    from bmoe_core.answer import Answer
    from bmoe_core.generator import Generator
    from bmoe_core.moe.stream import ExpertStream
    from bmoe_core.routing.tap import RouterTap
    from bmoe_core.target.model import LlamaModel

MAX_REFUSAL_LINES = 3
EXIT_CLOSED_PIPE = 141
STDOUT = "-"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status, see docs/reference/command-line.md."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    tolerate_encodings()
    with raising_on_sigterm():
        return _main(arguments)


def _main(arguments: list[str]) -> int:
    try:
        if arguments[:1] == ["sources"]:
            return _list_sources(arguments[1:])
        if arguments[:1] == ["new-source"]:
            return _new_source(arguments[1:])
        if arguments[:1] == ["bench"]:
            return _bench(arguments[1:])
        if arguments[:1] == ["chat"]:
            return _chat(parse(arguments[1:]))
        return _Run(parse(arguments)).execute()
    except BmoeError as error:
        lines = str(error).splitlines()[:MAX_REFUSAL_LINES]
        say("bmoe: " + "\n".join(lines))
        return error.exit_status
    except KeyboardInterrupt as interrupt:
        say("bmoe: interrupted")
        return exit_status_of(interrupt)
    except BrokenPipeError:
        abandon_stdout()
        return EXIT_CLOSED_PIPE


def _list_sources(arguments: Sequence[str]) -> int:
    if arguments and not {"-h", "--help"}.isdisjoint(arguments):
        print("usage: bmoe sources\n\nLists the installed draft sources and their options.")
        return 0
    if arguments:
        raise UsageError(f"`bmoe sources` takes no arguments, and {arguments[0]!r} was given")
    TextStream(sys.stdout).write("".join(f"{line}\n" for line in describe_sources()))
    return 0


def _new_source(arguments: Sequence[str]) -> int:
    TextStream(sys.stdout).write(write_new_source(arguments))
    return 0


def _bench(arguments: Sequence[str]) -> int:
    missing = [name for name in ("rich", "matplotlib") if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"bmoe bench needs {' and '.join(missing)}: pip install 'bmoe-core[bench]'"
        )
    from bmoe_core.bench.main import bench

    return bench(arguments)


def _chat(arguments: Arguments) -> int:
    from bmoe_core.chat_command import chat

    return chat(arguments, _model_of(arguments))


def _model_of(arguments: Arguments) -> str:
    """The model that was given, or the demo model."""
    options = arguments.options
    if options.model is not None:
        return str(options.model)
    if not options.quiet:
        say("bmoe: no model was given (-m): this is the demo model, which knows nothing")
    return str(demo_model())


@define(eq=False)
class _Run:
    """One generation, from its arguments to its report."""

    arguments: Arguments
    progress: Progress = field(init=False)
    sampling: Sampling = field(init=False)
    stream: ExpertStream | None = field(default=None, init=False)
    tap: RouterTap | None = field(default=None, init=False)
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
        self.sampling = sampling_of(options)
        if options.system is not None and not options.chat:
            raise UsageError("--system goes with --chat, and with bmoe chat")
        prompt = read_prompt(options.prompt, options.file)
        with contextlib.ExitStack() as stack:
            stack.callback(self.progress.clear)
            self._open_files(stack)
            options.model = _model_of(self.arguments)
            generator = self._load(stack, source)
            stack.callback(self._close, generator)
            return self._answer(generator, prompt)

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

    def _load(self, stack: contextlib.ExitStack, source: OpenSource | None) -> Generator:
        from bmoe_core.generator import Generator
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
        self.stream = stream
        self.tap = self._make_tap(model, stream)
        generator = Generator(
            model,
            draft_source=source,
            draft=options.draft,
            gate=self.gate,
            n_ctx=options.ctx_size,
            n_threads=options.threads,
            strict=options.strict,
            tap=self.tap,
        )
        self.load_s = time.perf_counter() - started
        return generator

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

    def _open_accounts(self, generator: Generator, n_prompt: int) -> None:
        options, stream = self.arguments.options, self.stream
        cache_size = None if stream is None else stream.cache_size
        if stream is None and options.cache_mb is not None:
            automatic = options.cache_mb == AUTO
            cache_size = CacheSize.automatic() if automatic else CacheSize(options.cache_mb)
        self.accounts = Accounts(
            source=self.arguments.source or NO_SOURCE,
            tap=self.tap,
            cache_size=cache_size,
            gate=self.gate,
            csv=CsvLog(self.csv_file, options.n_predict) if self.csv_file else None,
            no_experts=self.tap is None and (options.routing or cache_size is not None),
        )
        if self.accounts.csv is not None:
            facts = _facts(generator) | (self.sampling.to_dict() or {"temp": 0})
            facts["n_prompt"], facts["n_predict"] = n_prompt, options.n_predict
            facts["draft"] = min(options.draft, generator.target.max_rollback)
            facts["gate"] = options.gate
            facts["modelled_cache"] = cache_size if stream is None and cache_size else ""
            facts |= stream.facts if stream else {}
            self.accounts.csv.begin(facts)

    def _answer(self, generator: Generator, prompt: str) -> int:
        options = self.arguments.options
        if options.chat:
            from bmoe_core.chat import ChatTemplate, question

            prompt = ChatTemplate(generator.model).render(question(prompt, options.system))
        answer = generator.generate(
            prompt,
            n_predict=options.n_predict,
            stop=options.stop,
            sampling=self.sampling,
            on_prefill=self._on_prefill,
            on_step=self._on_step,
        )
        for warning in generator.warnings:
            self._warn(warning)
        self._open_accounts(generator, answer.n_prompt)
        failure, interruption = self._stream(answer)
        for warning in answer.warnings if failure is None else [str(failure)]:
            self._warn(warning, said=failure is not None)
        self.accounts.finish(answer.finish_reason.value)
        csv = self.accounts.csv
        if csv is not None and csv.failure is not None:
            self._warn(csv.failure)
        self._report(generator)
        try:
            self._record(answer)
        except RunError as error:
            failure = failure or error
        if failure is not None:
            say(f"bmoe: {failure}")
        if interruption is not None:
            return exit_status_of(interruption)
        return 0 if failure is None else failure.exit_status

    def _stream(self, answer: Answer) -> tuple[RunError | None, KeyboardInterrupt | None]:
        """Write the answer as it comes; what ended it early, if something did."""
        text = TextStream(None if self.arguments.options.json == STDOUT else sys.stdout)
        failure: RunError | None = None
        interruption: KeyboardInterrupt | None = None
        try:
            for piece in answer:
                self.progress.clear()
                text.write(piece)
        except RunError as error:
            failure = error
        except KeyboardInterrupt as interrupt:
            interruption = interrupt
        answer.close()
        self.progress.clear()
        try:
            text.write(answer.text[text.n_written :])
            text.finish()
        except RunError as error:
            failure = failure or error
        return failure, interruption

    def _on_prefill(self, n_done: int, n_prompt: int) -> None:
        self.progress.show(f"reading the prompt: {n_done} of {n_prompt} tokens")
        if n_done == n_prompt:
            self.accounts.end_prefill()

    def _on_step(self, step: Step, wall_s: float) -> None:
        self.accounts.add(step, wall_s)

    def _report(self, generator: Generator) -> None:
        if self.arguments.options.quiet:
            return
        lines = self.accounts.lines()
        if generator.source is not None:
            lines += generator.source.report()
        if generator.target.rollback_mib:
            lines.append(
                f"rollback: {generator.target.rollback_mib:.2f} MiB of saved recurrent states"
            )
        for line in lines:
            say(line)

    def _record(self, answer: Answer) -> None:
        options = self.arguments.options
        if options.json is None:
            return
        record = RunRecord(
            source=self.arguments.source or NO_SOURCE,
            model=str(options.model),
            n_prompt=answer.n_prompt,
            summary=answer.summary,
            wall_s=answer.wall_s,
            prefill_s=answer.prefill_s,
            load_s=self.load_s,
            footprint=Footprint.now(),
            routing=self.accounts.routing_record(),
            gate=self.accounts.gate_record(),
            sampling=answer.sampling.to_dict(),
            finish_reason=answer.finish_reason.value,
            warnings=self.warnings,
            tokens=answer.tokens,
            text=answer.text,
        )
        if options.json == STDOUT:
            # Escaped, since stdout may not be able to show every character.
            TextStream(sys.stdout).write(json.dumps(record.to_dict(), indent=2) + "\n")
            return
        assert self.record_file is not None
        self.record_file.write(json.dumps(record.to_dict(), ensure_ascii=False, indent=2) + "\n")

    def _close(self, generator: Generator) -> None:
        n_said = len(generator.warnings)
        generator.close()
        for warning in generator.warnings[n_said:]:
            self._warn(warning)

    def _warn(self, text: str, *, said: bool = False) -> None:
        """Note a warning for the record, and say it unless it is going to be said otherwise."""
        self.warnings.append(text)
        self.progress.clear()
        if not said:
            say(f"bmoe: warning: {text}")


def _preparing(*parts: OpenSource | ExpertStream | None) -> Callable[[Any], None]:
    """Lets each part that there is set fields of the model's parameters."""

    def prepare(model_params: Any) -> None:
        for part in parts:
            if part is not None:
                part.prepare_model(model_params)

    return prepare


def _facts(generator: Generator) -> dict[str, object]:
    """What runs, as resolved."""
    model, source, name = generator.model, generator.source, generator.source_name
    options = source.options if source is not None else {}
    return {
        "engine": f"bmoe-core {version('bmoe-core')}",
        "llama_cpp_python": version("llama-cpp-python"),
        "model": model.path,
        "architecture": model.architecture,
        "n_layer": model.n_layer,
        "n_expert": model.n_expert,
        "n_expert_used": model.n_expert_used,
        "n_threads": generator.target.n_threads,
        "n_ctx": generator.target.n_ctx,
        "spec": name,
        **{f"{name}.{option}": value for option, value in options.items()},
    }
