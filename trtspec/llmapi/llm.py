"""LLM: load or build an engine and generate from it."""

from __future__ import annotations

import itertools
import random
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tqdm import tqdm

from trtspec.builder.locate import find_model
from trtspec.builder.tokenizer import further_ends
from trtspec.config.decoding import DecodingConfig
from trtspec.config.model import ModelConfig
from trtspec.config.sampling import SamplingParams, draw_seed
from trtspec.engine.folder import EngineConfig
from trtspec.engine.open import WeightReader
from trtspec.errors import ConfigError, TrtspecError
from trtspec.executor.executor_metrics import ExecutorFigures
from trtspec.executor.schedule.admission import admission_order
from trtspec.executor.step.request import Request
from trtspec.executor.text.stopping import StopChecker
from trtspec.guided.guides import Guides
from trtspec.llmapi.engines import check_engine
from trtspec.llmapi.handle import GenerationHandle
from trtspec.llmapi.lora import LoadedAdapters, LoRARequest
from trtspec.llmapi.opened import OpenedEngine
from trtspec.llmapi.options import LLMConfig
from trtspec.llmapi.outputs import CompletionOutput, EngineLoad, RequestOutput, acceptance_of
from trtspec.llmapi.peer_options import part_speculation
from trtspec.llmapi.per_prompt import PromptOptions, PromptOptionsReader
from trtspec.llmapi.process import check_process, claim_process
from trtspec.llmapi.prompts import Prompt, PromptReader, is_single_prompt
from trtspec.llmapi.runtime import open_runtime
from trtspec.llmapi.worker import LiveSequence, Worker
from trtspec.log import progress, progress_shown
from trtspec.speculative.options import names_no_method, parse_speculative_config
from trtspec.speculative.recording import ready_to_run


class LLM:
    """A language model on compiled engines, with or without speculation.

        config = {"method": "ngram", "num_speculative_tokens": 5}
        with LLM("trtspec-tiny", speculative_config=config) as llm:
            print(llm.generate("def main(").outputs[0].text)

    ``model`` is a Hugging Face folder or id, a GGUF file, the name of an embedded checkpoint, or an
    engine folder made by ``trtspec-build``. A checkpoint is compiled once, into the user's cache
    folder. An engine folder with a draft speculates with it unless ``speculative_config`` says
    otherwise (False: no speculation). Other options: see `LLMConfig`.
    """

    def __init__(
        self,
        model: str | Path,
        speculative_config: Mapping[str, Any] | DecodingConfig | bool | None = None,
        **options: Any,
    ) -> None:
        """Load the engine, building it first if necessary.

        Raises:
            ConfigError: options are unknown, out of range or contradict each other.
            CheckpointError, BuildError, EngineError: see their descriptions. EngineError is also
                raised in a child that was forked after an LLM had been opened.
        """
        check_process()
        speculative_config, options = part_speculation(speculative_config, options)
        config = LLMConfig(**options)
        if speculative_config is True:
            raise ConfigError("speculative_config=True names no method; give a config or None")
        uses_built_drafts = not (speculative_config is False or names_no_method(speculative_config))
        asked = None if speculative_config is False else speculative_config
        wanted = ready_to_run(parse_speculative_config(asked), config.kv_transfer_config)
        path = find_model(model)
        opened = OpenedEngine.of(path, config, wanted, uses_built_drafts, self._source)
        engine, tokenizer = opened.engine, opened.tokenizer
        limits = check_engine(engine, config)
        self.config = engine
        self.speculation = opened.speculation
        self._deepest_drafts = 0 if self.speculation is None else self.speculation.max_draft_len
        self.limits = limits
        # The tokenizer may be another than the build's.
        ends = (*engine.target.eos_token_ids, *further_ends(tokenizer, engine.target))
        # Others are never said, and no row of logits has a place for them.
        self._ends = tuple(token for token in ends if token < engine.target.vocab_size)
        self.prompts = PromptReader(tokenizer, engine.target.vocab_size)
        self.adapters = LoadedAdapters(engine, config.lora_modules)
        self._guides = Guides(tokenizer, engine.target.vocab_size, self._ends)
        self._random = random.Random(config.seed) if config.seed is not None else None
        graphs = config.graph_config(engine.build.device)
        order = admission_order(config.scheduling_policy, config.priority_max_wait)
        self._options = PromptOptionsReader(order is not None, self.adapters.of).read
        claim_process()
        with progress_shown(config.verbose), progress("load the engine", is_long=False):
            self._runtime = open_runtime(
                *(opened.folder, engine, opened.drafts, limits, opened.speculation),
                *(config.kv_cache_config, graphs, config.async_scheduling, config.steps_ahead),
                order=order,
                weights=self._weights(opened.folder, engine),
            )
        self._executor = self._runtime.executor
        self._ids = itertools.count()
        self._worker = Worker(self._executor, self._runtime.close, self._runtime.followers)
        # Also runs when the object is collected, and at exit before the interpreter tears down.
        self._finalizer = weakref.finalize(self, self._worker.close)

    def _source(self, folder: Path, engine: EngineConfig) -> ModelConfig:
        """The target that an engine folder's drafts were made for."""
        return engine.target

    def _weights(self, folder: Path, engine: EngineConfig) -> WeightReader | None:
        """Makes the engine's weights; None: they are in the folder's files."""
        return None

    @property
    def tokenizer(self) -> Any:
        """The target's tokenizer (a transformers tokenizer), or None if it was not loaded."""
        return self.prompts.tokenizer

    def get_tokenizer(self) -> Any:
        """`tokenizer`, under vLLM's name."""
        return self.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        priority: int | Sequence[int] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> Any:
        """Generate for one prompt or many.

        A prompt is a string, a list of token ids, ``{"prompt": str}``, ``{"prompt_token_ids":
        [...]}``, or has both: ids and the text they are of. One SamplingParams applies to all
        prompts, a list has one for each. A single prompt returns one RequestOutput and raises on
        failure. A list returns a RequestOutput for each prompt: a failed one carries its ``error``
        and leaves the others unharmed.

        ``priority``, also one for all or one for each: with ``scheduling_policy="priority"``,
        prompts with lower values begin earlier, equal ones in order of arrival. The default is 0.

        ``lora_request``, likewise: the adapter that reads the prompts; None: none does. One that is
        not loaded is loaded first.

        Raises:
            RequestError: sampling_params, priorities or adapters have a wrong type or number,
                priorities other than 0 are given without a policy that reads them, or an adapter is
                not known.
            CheckpointError: an adapter cannot be read, or does not fit the model.
            EngineError: this LLM was shut down, its worker died, or this process was forked from
                the one that owns it.
        """
        single = is_single_prompt(prompts)
        batch: Sequence[Any] = [prompts] if single else list(prompts)
        options = self._options(len(batch), sampling_params, priority, lora_request)
        handles = self._submit(batch, options, streaming=False, raise_errors=single)
        results = []
        bar = tqdm(handles, desc="generate", disable=not use_tqdm or single, leave=False)
        try:
            for handle in bar:
                results.append(handle.wait())
        except BaseException:
            for handle in handles:
                handle.abort()
            raise
        if single and results[0].error is not None:
            raise results[0].error
        return results[0] if single else results

    def generate_async(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        streaming: bool = False,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
    ) -> GenerationHandle:
        """Start one prompt and return immediately; see `GenerationHandle` for waiting and
        streaming, and `generate` for ``priority`` and ``lora_request``.

        Raises:
            RequestError: the prompt or the options are invalid.
        """
        return self.submit([prompt], sampling_params, streaming, priority, lora_request)[0]

    def submit(
        self,
        prompts: Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        streaming: bool = False,
        priority: int | Sequence[int] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[GenerationHandle]:
        """Start several prompts together and return immediately; if one is invalid, none starts.

        Raises:
            RequestError: a prompt or the options are invalid.
        """
        options = self._options(len(prompts), sampling_params, priority, lora_request)
        return self._submit(prompts, options, streaming, raise_errors=True)

    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        priority: int | Sequence[int] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        **options: Any,
    ) -> Any:
        """Generate the answer to a conversation, or to a list of conversations.

        A conversation is a list of ``{"role": ..., "content": ...}``, where the content is a string
        or a list of ``{"type": "text", "text": ...}``. The tokenizer's chat template turns it into
        a prompt, from whichever of the two forms it is written for. A message may have a ``name``
        and other fields that the template reads (such as ``tool_calls``). ``options``: ``tools``,
        ``chat_template``, ``chat_template_kwargs`` and the others of `ChatOptions`, and variables
        of the template. ``priority``, ``lora_request``: see `generate`.

        Raises:
            RequestError: as in `chat_prompt` and `generate`.
        """
        self._worker.check()
        is_list = isinstance(messages, Sequence) and not isinstance(messages, (str, bytes))
        single = not is_list or (bool(messages) and isinstance(messages[0], Mapping))
        if single:
            asked: Any = self.prompts.chat(messages, options)
        else:
            asked = self.prompts.chats(messages, options)
        return self.generate(asked, sampling_params, use_tqdm, priority, lora_request)

    def chat_tokens(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """The tokens of `chat_prompt`."""
        return self.prompts.chat_tokens(messages, options)

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Prompt:
        """The prompt that the chat template makes of a conversation; ``options`` as for `chat`.

        Raises:
            RequestError: an option is unknown or has no effect on the template; there is no
                template, or it rejected the conversation; a message has an unknown role, a field
                that the template never reads, or content other than text.
        """
        return self.prompts.chat(messages, options)

    def tokenize(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a text, as those of a prompt.

        Raises:
            RequestError: there is no tokenizer, or it cannot read the text.
        """
        return self.prompts.tokenize(text, add_special_tokens)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones included.

        Raises:
            RequestError: there is no tokenizer, there are no tokens, or one is not the model's.
        """
        return self.prompts.detokenize(tokens)

    def prepare(self, sampling_params: SamplingParams) -> None:
        """Do slow preparations for these options now, so that a later request with them starts at
        once: compile their grammar, which is kept.

        Raises:
            RequestError: the grammar is invalid or exceeds a limit.
            ConfigError: the package that compiles grammars is missing.
        """
        self._guides.prepare(sampling_params)

    @property
    def fault(self) -> TrtspecError | None:
        """Why this LLM can no longer serve requests; None while it can."""
        return self._worker.fault

    def load(self) -> EngineLoad:
        """How busy the LLM is now; any thread may call this."""
        executor, worker = self._executor, self._worker
        failure = executor.metrics.last_failure
        return EngineLoad(
            num_running=executor.num_running,
            num_waiting=executor.num_waiting,
            kv_cache_usage=executor.kv_cache_usage,
            num_prompt_tokens=worker.num_prompt_tokens,
            num_generated_tokens=worker.num_generated_tokens,
            step_seconds=worker.step_seconds,
            num_failed_steps_in_a_row=executor.metrics.num_failed_steps_in_a_row,
            last_failure=None if failure is None else str(failure),
        )

    def figures(self) -> ExecutorFigures:
        """Figures since the start, which can be added to those of another LLM."""
        return self._executor.metrics.figures()

    def get_metrics(self) -> dict[str, Any]:
        """`figures` under their names, which `trtspec.executor.metrics` defines."""
        return self.figures().to_dict()

    def shutdown(self) -> None:
        """Abort running requests, stop the worker and free weights and caches; may be called twice.
        Metrics stay readable. In a forked child this does nothing."""
        self._finalizer()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    def _submit(
        self,
        prompts: Sequence[Any],
        options: Sequence[PromptOptions],
        streaming: bool,
        raise_errors: bool,
    ) -> list[GenerationHandle]:
        """Check and queue prompts; an invalid one ends immediately with its error."""
        self._worker.check()
        handles, sequences = [], []
        for prompt, own in zip(prompts, options, strict=True):
            output = RequestOutput(
                next(self._ids),
                None,
                [],
                [],
                acceptance=acceptance_of(self.speculation, own.params),
            )
            handle = GenerationHandle(output, streaming, self._worker.abort)
            try:
                sequences += self._sequences(prompt, own, output, handle)
            except TrtspecError as error:
                if raise_errors:
                    raise
                output.error = error
                output.outputs = [CompletionOutput(0, 0, finish_reason="error")]
                handle.publish()
            handles.append(handle)
        self._worker.submit(sequences)
        return handles

    def _sequences(
        self,
        prompt: Prompt,
        options: PromptOptions,
        output: RequestOutput,
        handle: GenerationHandle,
    ) -> list[LiveSequence]:
        """The n sequences of a prompt, with a common seed and a sample index each."""
        output.prompt, output.prompt_token_ids = self.prompts.read(prompt)
        params = self.prompts.resolve(options.params)
        eos = () if params.ignore_eos else self._ends
        ends = (*eos, *params.stop_token_ids)
        seed = params.seed
        if seed is None:
            seed = self._random.getrandbits(63) if self._random else draw_seed()
        if params.prompt_logprobs is not None:
            output.prompt_logprobs = [None] * len(output.prompt_token_ids)
        sequences = []
        for index in range(params.n):
            # A request id is the order of arrival too, so every sequence draws one of its own.
            request = Request.create(
                id=output.request_id if index == 0 else next(self._ids),
                prompt=output.prompt_token_ids,
                params=params,
                seed=seed,
                max_seq_len=self.limits.max_seq_len,
                sample_index=index,
                eos_token_ids=eos,
                processors=self._guides.processors(params, output.prompt_token_ids, ends),
                priority=options.priority,
                max_draft_len=params.max_draft_len(self._deepest_drafts),
                adapter=options.adapter,
            )
            stop = StopChecker(params, eos, self.prompts.decoder, output.prompt_token_ids)
            completion = CompletionOutput(index, seed)
            output.outputs.append(completion)
            sequences.append(LiveSequence(request, stop, completion, output, handle))
        return sequences
