"""trtspec-run: write on from a prompt, or chat, with a GGUF file or any other checkpoint. Takes the
flags of llama.cpp's programs. The first use of a file compiles it."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trtspec.commands.program_parser import program_parser
from trtspec.commands.run_flags import add_flags, check_foreign, device, speculation, unescaped
from trtspec.config.sampling import SamplingParams
from trtspec.errors import ConfigError, RequestError, TrtspecError
from trtspec.llmapi.llm import LLM
from trtspec.llmapi.outputs import RequestOutput
from trtspec.llmapi.prompts import Prompt
from trtspec.log import log_to_stderr, logger

_CLEAR, _EXIT = "/clear", "/exit"


def make_parser() -> argparse.ArgumentParser:
    parser = program_parser("trtspec-run", __doc__, allow_abbrev=False)
    add_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    log_to_stderr(logging.WARNING if args.log_disable else logging.INFO)
    try:
        check_foreign(args)
        prompt, params, chats = read_prompt(args), sampling(args), args.chat
        if chats is None:
            chats = prompt is None or args.system_prompt is not None
        if prompt is None and not chats:
            raise ConfigError("there is no prompt; give one with -p or -f, or chat with -i")
        if args.threads != -1:
            if args.threads < 1:
                raise ConfigError(f"--threads {args.threads} must be at least 1, or -1")
            torch.set_num_threads(args.threads)
        options, config = llm_options(args), speculation(args)
        with LLM(args.model, config, **options) as llm:
            if not args.verbose:  # what was built and opened has been said
                logger.setLevel(logging.WARNING)
            if chats:
                Chat(llm, params, args).run(prompt, input)
            else:
                assert prompt is not None, "else it was refused"
                if not args.no_display_prompt:
                    _write(prompt)
                show(write(llm, prompt, params), args)
    except KeyboardInterrupt:
        return 130
    except TrtspecError as error:
        print(f"trtspec-run: {error}", file=sys.stderr)
        return 1
    return 0


def read_prompt(args: argparse.Namespace) -> str | None:
    """The text to continue; None: none was given."""
    if args.prompt is not None and args.file is not None:
        raise ConfigError("--prompt and --file both give a prompt; give one of them")
    if args.file is None:
        return None if args.prompt is None else unescaped(args.prompt, args)
    try:
        text: str = args.file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--file {args.file} cannot be read: {error}") from error
    return text.removesuffix("\n")


def sampling(args: argparse.Namespace) -> SamplingParams:
    if args.predict < -1 or args.predict == 0:
        raise ConfigError(f"--predict {args.predict} must be at least 1, or -1: to the end")
    return SamplingParams(
        max_tokens=None if args.predict == -1 else args.predict,
        temperature=args.temp,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        seed=None if args.seed == -1 else args.seed,
        repetition_penalty=args.repeat_penalty,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        stop=tuple(args.reverse_prompt),
        ignore_eos=args.ignore_eos,
    )


def llm_options(args: argparse.Namespace) -> dict[str, Any]:
    """Options of `LLM`: one text at a time."""
    if args.ctx_size < 0:
        raise ConfigError(f"--ctx-size {args.ctx_size} must be at least 2, or 0: the model's")
    given = {
        "device": device(args),
        "backend": args.backend,
        "max_seq_len": args.ctx_size or None,
        "max_num_tokens": args.ubatch_size,
    }
    named = {name: value for name, value in given.items() if value is not None}
    return {"dtype": args.dtype, "max_batch_size": 1, **named}


def write(llm: LLM, prompt: Prompt, params: SamplingParams) -> RequestOutput:
    """Generate, and print the text as it arrives; Ctrl-C ends it early."""
    handle = llm.generate_async(prompt, params, streaming=True)
    written = 0
    try:
        for snapshot in handle:
            text = snapshot.outputs[0].text
            _write(text[written:])
            written = len(text)
    except KeyboardInterrupt:
        handle.abort()
        handle.wait()
    _write("\n")
    return handle.output


def show(output: RequestOutput, args: argparse.Namespace) -> None:
    """Print one line about an answer on standard error."""
    if not args.no_perf:
        print(figures(output), file=sys.stderr)


def figures(output: RequestOutput) -> str:
    """How fast an answer came, and how its drafts fared."""
    answer, metrics = output.outputs[0], output.metrics
    line = f"[ {len(output.prompt_token_ids)} + {len(answer.token_ids)} tokens"
    if answer.first_token_time is not None and answer.finish_time is not None:
        seconds = answer.finish_time - answer.first_token_time
        if seconds > 0 and len(answer.token_ids) > 1:
            line += f", {(len(answer.token_ids) - 1) / seconds:.1f} tokens/s"
    if metrics.num_draft_tokens:
        line += (
            f", {metrics.acceptance_length:.2f} tokens a step, {metrics.num_accepted_tokens} of "
            f"{metrics.num_draft_tokens} drafts accepted"
        )
    return f"{line} | seed {answer.seed} ]"


class Chat:
    """A conversation in the terminal."""

    def __init__(self, llm: LLM, params: SamplingParams, args: argparse.Namespace) -> None:
        self._llm, self._params, self._args = llm, params, args
        self._first: list[dict[str, str]] = []
        if args.system_prompt is not None:
            self._first.append({"role": "system", "content": unescaped(args.system_prompt, args)})
        self._messages = list(self._first)

    def run(self, said: str | None, read: Callable[[str], str]) -> None:
        """Answer ``said``, then whatever ``read`` returns, until it ends.

        Raises:
            RequestError: the first message cannot be answered, for example without a chat template.
        """
        if said is None or not self._args.single_turn:
            print(f"{_CLEAR}: begin again, {_EXIT} or Ctrl-D: end", file=sys.stderr)
        if said is not None:
            self._answer(said)
        while said is None or not self._args.single_turn:
            try:
                said = read("\n> ").strip()
            except (EOFError, KeyboardInterrupt):
                _write("\n")
                return
            if said == _EXIT:
                return
            if said == _CLEAR:
                self._messages = list(self._first)
            if not said or said == _CLEAR:
                said = None
                continue
            try:
                self._answer(said)
            except RequestError as error:
                if len(self._messages) == len(self._first):
                    raise
                print(f"trtspec-run: {error}; {_CLEAR} begins again", file=sys.stderr)

    def _answer(self, said: str) -> None:
        asked = [*self._messages, {"role": "user", "content": said}]
        named = self._args.chat_template
        options = {} if named is None else {"chat_template": named}
        output = write(self._llm, self._llm.chat_prompt(asked, **options), self._params)
        self._messages = [*asked, {"role": "assistant", "content": output.outputs[0].text}]
        show(output, self._args)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
