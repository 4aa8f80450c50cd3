"""train_draft: from a target to a draft for it."""

from __future__ import annotations

import fcntl
import json
import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import FrameType

import torch

from trtspec.builder.locate import cache_root, require_cache
from trtspec.builder.made_for import MADE_FOR, facts_of
from trtspec.builder.scratch import scratch_folder
from trtspec.builder.token_choice import DraftVocabulary, choose
from trtspec.errors import ConfigError, TrainingError, TrtspecError
from trtspec.log import logger
from trtspec.speculative.recipe import HeadRequest
from trtspec.speculative.registry import method_name, methods
from trtspec.temporary import is_plain, temporary_folder
from trtspec.train.card import Card
from trtspec.train.checkpoint import claim
from trtspec.train.data import (
    RECORDED,
    check_states,
    find_source,
    held_out_prompts,
    key_of_facts,
    mask_token,
    recorded_paths,
    write_texts,
)
from trtspec.train.head import Head
from trtspec.train.measure import Measured, measure
from trtspec.train.modelopt_head import ModelOptHead, require_modelopt
from trtspec.train.options import TrainOptions
from trtspec.train.plan import TrainingPlan
from trtspec.train.products import efficiency, measure_gflops
from trtspec.train.target import TrainingTarget
from trtspec.train.text_store import TextStore
from trtspec.train.trainer import Schedule, Trainer, steps_of
from trtspec.train.windows import RecordedTexts
from trtspec.version import __version__


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Whether SIGINT or SIGTERM has arrived since; a second SIGINT interrupts immediately. For a
    program's main thread."""
    asked = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked = True

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_FUSES_FROM = 300
"""Number of steps from which fusing passes over the vocabulary is worth compiling."""
_MEASURED_PROMPTS = 16
_MOST_DRAFTED = 16_384
"""Head rows that a plan assumes if the data will decide."""


@dataclass(frozen=True)
class _Data:
    texts: RecordedTexts
    store: TextStore | None
    description: str


def make_plan(options: TrainOptions) -> TrainingPlan:
    """Decide everything before data is written; writes nothing.

    Raises:
        CheckpointError: the target cannot be read.
        ConfigError: options do not fit it, or each other.
    """
    method = methods()[method_name(options.method)]
    recipe = method.recipe
    assert recipe is not None, "the options were checked"
    target = TrainingTarget.open(options.model, options.tokenizer)
    layers = recipe.capture_layers(target.config)
    source = find_source(options, target, layers)
    folder = _state_folder(options, target)
    if source.kind == RECORDED:
        assert options.hidden_states is not None
        paths = recorded_paths(options.hidden_states)
        tokens = RecordedTexts(paths, layers, target.config.num_layers).num_tokens
        new = 0
    else:
        here = folder / f"texts-{source.key}"
        written = TextStore(here).num_tokens
        tokens, new = max(options.tokens, written), max(0, options.tokens - written)
    vocabulary = target.config.vocab_size
    if recipe.cuts_vocabulary:
        given = options.draft_vocab_size
        vocabulary = min(vocabulary, given or (_MOST_DRAFTED if given is None else vocabulary))
    elif options.draft_vocab_size:
        raise ConfigError(
            f"--draft_vocab_size {options.draft_vocab_size}: a draft for {method.name} uses the "
            "target's own vocabulary head; leave it out"
        )
    return TrainingPlan(
        options=options,
        recipe=recipe,
        target=target,
        source=source,
        folder=folder,
        tokens=tokens,
        new_tokens=new,
        vocabulary=vocabulary,
        depth=options.depth or recipe.depth,
        gflops=measure_gflops(_device(options)),
        efficiency=efficiency(_device(options)),
    )


def train_draft(plan: TrainingPlan, argv: Sequence[str] = ()) -> Path:
    """Write the texts, train on them, measure and write the head. An interrupted call continues
    where it was. ``argv``: the command, for the card.

    Raises:
        ConfigError: ModelOpt is not installed; the state belongs to another target, or is in use.
        TrainingError: work so far is kept; the message says how to continue.
    """
    require_modelopt()
    plan.check()
    options, target = plan.options, plan.target
    try:
        claim(plan.folder, facts_of(target.name, target.fingerprint))
        with _locked(plan.folder):
            data = _data(plan)
            return _train(plan, data, argv)
    except OSError as error:
        raise TrainingError(
            f"{plan.folder} or {options.output.parent} cannot be written to: {error}; what was "
            "done before is kept: run the same command again to go on"
        ) from error


def _data(plan: TrainingPlan) -> _Data:
    options, target = plan.options, plan.target
    layers, source = plan.recipe.capture_layers(target.config), plan.source
    if source.kind == RECORDED:
        assert options.hidden_states is not None
        texts = RecordedTexts(
            recorded_paths(options.hidden_states), layers, target.config.num_layers
        )
        check_states(texts, target)
        return _Data(texts, None, f"{texts.num_tokens:,} tokens {source.description}")
    store = TextStore(plan.folder / f"texts-{source.key}")
    if not options.finish:
        write_texts(options, target, source, plan.recipe.recorded_layers(target.config), store)
    prompts = [text.prompt for text in store.texts]
    texts = RecordedTexts(store.paths, layers, target.config.num_layers, prompts)
    check_states(texts, target)
    return _Data(
        texts,
        store,
        f"{texts.num_tokens:,} tokens in {len(store.texts):,} texts {source.description}",
    )


def _train(plan: TrainingPlan, data: _Data, argv: Sequence[str]) -> Path:
    options, target, recipe = plan.options, plan.target, plan.recipe
    texts, vocabulary = data.texts, _vocabulary(plan, data.texts)
    size = vocabulary.size(target.config.vocab_size)
    logger.info(
        "the draft may propose %d of %d tokens, %.2f %% of a text",
        *(size, target.config.vocab_size, 100 * vocabulary.coverage),
    )
    length, rows, seed = options.window_tokens, options.step_tokens, options.seed
    schedule = Schedule(
        steps=steps_of(texts, options.passes, length, rows, seed),
        length=length,
        rows=rows,
        depth=plan.depth,
        deepens=recipe.depth_setting is not None,
        rate=options.learning_rate,
        vocabulary_rate=options.vocabulary_rate,
        seed=seed,
        row_multiple=recipe.row_multiple,
    )
    folder = plan.folder / f"{options.method}-{_training_key(schedule, vocabulary, texts)}"
    folder.mkdir(exist_ok=True)
    request = HeadRequest(target.config, size, plan.depth, mask_token(target), length)
    head: Head = ModelOptHead(
        recipe,
        request,
        target,
        vocabulary.ids,
        seed,
        _device(options),
        compiles=schedule.steps >= _FUSES_FROM and not options.finish and _can_compile(),
    )
    trainer = Trainer(head, texts, schedule, folder)
    if options.finish and trainer.step == 0:
        raise ConfigError(
            f"--finish: there is no checkpoint of this training in {plan.folder}; leave it out, or "
            "give the options that the training was begun with"
        )
    if not options.finish:
        with asked_to_stop() as stops:
            trainer.run(stops=stops)
        if trainer.step < schedule.steps:
            raise TrainingError(
                f"stopped after step {trainer.step} of {schedule.steps}; what is done is kept in "
                f"{folder}: run the same command again to go on, or with --finish to write the "
                "head as it is"
            )
    held_out = trainer.held_out()
    logger.info("held out: %s", held_out.describe())
    with scratch_folder(options.output) as fresh:
        head.export(fresh)
        made_for = json.dumps(facts_of(target.name, target.fingerprint), indent=1)
        (fresh / MADE_FOR).write_text(made_for + "\n")
        card = Card(
            plan=plan,
            title=options.output.name,
            command=shlex.join(["trtspec-train", *argv]),
            schedule=schedule,
            step=trainer.step,
            data=data.description,
            vocabulary=vocabulary,
            held_out=held_out,
            measured=_measured(plan, data, fresh),
            versions=f"trtspec {__version__}, torch {torch.__version__}, nvidia-modelopt "
            f"{version('nvidia-modelopt')}",
        )
        (fresh / "README.md").write_text(card.text())
        if options.output.is_dir():
            options.output.rmdir()
        fresh.rename(options.output)
    logger.info("wrote %s", options.output)
    return options.output


def _measured(plan: TrainingPlan, data: _Data, head: Path) -> Measured | str:
    options = plan.options
    if options.no_measure:
        return "not measured (--no_measure)"
    config = plan.speculation(str(head))
    prompts = held_out_prompts(data.texts, data.store, _MEASURED_PROMPTS)
    try:
        measured = measure(
            options.model,
            config,
            prompts,
            max_batch_size=8,
            backend=options.backend,
            tokenizer=options.tokenizer,
        )
    except TrtspecError as error:  # hours of training are worth more than a figure
        logger.warning("the head cannot be measured: %s", error)
        return f"not measured: {error}"
    logger.info("acceptance length: %s", measured.describe())
    return measured


def _vocabulary(plan: TrainingPlan, texts: RecordedTexts) -> DraftVocabulary:
    config = plan.target.config
    if not plan.recipe.cuts_vocabulary:
        return DraftVocabulary(None, 1.0)
    ids = (texts.token_ids(text) for text in texts.trained)
    return choose(
        ids, config.vocab_size, config.eos_token_ids, plan.options.draft_vocab_size, plan.cost
    )


def _training_key(schedule: Schedule, vocabulary: DraftVocabulary, texts: RecordedTexts) -> str:
    """A key over everything that determines the weights besides target and method."""
    ids = None if vocabulary.ids is None else vocabulary.ids.tolist()
    shape = (schedule.steps, schedule.length, schedule.rows, schedule.depth, schedule.seed)
    facts = (*shape, schedule.rate, schedule.vocabulary_rate, ids, texts.lengths)
    return key_of_facts(facts)


def _state_folder(options: TrainOptions, target: TrainingTarget) -> Path:
    if options.state is not None:
        return options.state
    require_cache()
    return cache_root() / "training" / f"{target.name}-{target.fingerprint[:12]}"


def _can_compile() -> bool:
    """Whether torch's compiler can work in this process, whose folders cannot be changed."""
    folders = (torch.__path__[0], str(temporary_folder()))
    found = next((folder for folder in folders if not is_plain(folder)), None)
    if found is not None:
        logger.warning(
            "training takes longer, as torch cannot compile for it in %r because of the folder's "
            "name; move it, or name another one in TMPDIR",
            found,
        )
    return found is None


def _device(options: TrainOptions) -> str:
    if options.device != "auto":
        return options.device
    return "cuda" if torch.cuda.is_available() else "cpu"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raise ConfigError if another process trains in the folder."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"another training is at work in {folder}; wait for it, or give another --state "
                "folder"
            ) from error
        yield
