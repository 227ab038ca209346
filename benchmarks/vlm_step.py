"""A training step of a vision-language policy on groups that show screenshots: speed and memory.

Each of `--group` trajectories has seen `--images` screenshots of `--screen` pixels, the first of
them the same for all, and said `--said` tokens after each. `learn` is that of `--config`: its
layout, precision, adapters and micro-batches. The model is in `--path`, or a tiny new Qwen3-VL, and
is on the GPU if there is one.

- A run is one `PolicyTrainer.step`: credit, forward and backward passes, and the optimiser. The
  same trainer without an encoder cache has a frozen vision tower encode an image in every pass
  that shows it. What that costs depends on the passes: epochs, a reference, scores at batch start,
  micro-batches.
- Work is tokens of the sequences, those of images among them, however many a layout computes.
- Memory is that of torch's allocator on a GPU, and what the process holds on a CPU: before a step
  (weights, moments, adapters), and what the step adds at most.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image as Pictures
from transformers import PreTrainedModel

from agentrl.config.learn import GapAlarmSection, LearnSection
from agentrl.config.load import load_config
from agentrl.config.run import MakePolicySection, MakeVisionSection
from agentrl.learn.trainer import PolicyTrainer
from agentrl.message import Image
from agentrl.models.folders import load_images, load_model, make_images, make_model
from agentrl.models.vision.encoder_cache import BATCH_BYTES
from agentrl.models.vision.processor import ImageProcessor
from agentrl.task import Task
from agentrl.trajectory import Finished, Leaf, Node, Tree
from benchmarks.harness import Benchmark, Contender, Run, parser, positive
from benchmarks.measure import measure
from benchmarks.training import resident_kb

CONFIG = Path("configs/gui_vlm_2b.yaml")
TINY = MakePolicySection(
    hidden_size=64,
    layers=2,
    head_dim=16,
    intermediate_size=128,
    vision=MakeVisionSection(layers=2, patch_size=16, max_pixels=2**24),
)
WORDS = 200
"""Ids below it are bytes in the tokenizers of the family, and no specials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a step trains on, and with which model and settings."""

    config: Path
    path: str | None
    images: int
    screen: tuple[int, int]
    group: int
    said: int
    image_bytes: int = BATCH_BYTES
    """Memory for what is made of a batch's images; 0 makes it again in every pass."""

    def learn(self) -> LearnSection:
        """Return the learning half's settings, but that nobody minds log-probs made up here."""
        learn = load_config(self.config).learn
        return learn.model_copy(update={"gap_alarm": GapAlarmSection(action="none")})

    def policy(self) -> tuple[PreTrainedModel, ImageProcessor]:
        """Return the model on its device, and its image processor."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        if self.path is None:
            ids = (WORDS, WORDS + 1, WORDS + 2)
            model = make_model(
                TINY,
                vocab_size=WORDS + 3,
                eos_token_id=1,
                pad_token_id=0,
                context_tokens=32768,
                seed=0,
                image_token_ids=ids,
            )
            assert TINY.vision is not None
            images = make_images(TINY.vision, token_id=ids[1])
            return model.to(device), images  # pyright: ignore[reportArgumentType]
        dtype = load_config(self.config).policy.dtype
        model = load_model(self.path, dtype=dtype, device=device)
        images = load_images(self.path, model)
        if images is None:
            raise SystemExit(
                f"--path {self.path} is no vision-language model of the Qwen-VL family"
            )
        return model, images

    def tree(self, model: PreTrainedModel, images: ImageProcessor, version: int) -> Tree:
        """Return a group whose trajectories show the same screenshot first and then others."""
        random = np.random.default_rng(version)
        specials = (model.config.vision_start_token_id, model.config.vision_end_token_id)

        def words(count: int) -> tuple[int, ...]:
            return tuple(random.integers(3, WORDS, count).tolist())

        def shown(parent: int | None, turn: int) -> Node:
            image = screenshot(random, *self.screen)
            count = images.tokens(image)
            before = (*words(8), specials[0])
            return Node(
                parent=parent,
                source="prompt" if parent is None else "tool",
                turn=turn,
                token_ids=(*before, *[images.token_id] * count, specials[1], *words(8)),
                images=(image,),
                image_spans=((len(before), len(before) + count),),
            )

        tree = Tree(Task(prompt="q", id=f"step {version}"))
        root = tree.add(shown(None, 0))
        for sample in range(self.group):
            at = root
            for turn in range(self.images):
                if turn:
                    at = tree.add(shown(at, turn))
                at = tree.add(
                    Node(
                        parent=at,
                        source="sampled",
                        turn=turn,
                        token_ids=words(self.said),
                        logprobs=(-5.0,) * self.said,
                        versions=(version,) * self.said,
                    )
                )
            tree.end(Leaf(node=at, outcome=Finished(float(sample % 2)), sample=sample))
        return tree


def screenshot(random: np.random.Generator, width: int, height: int) -> Image:
    """Return a picture of coarse noise; what is on it changes no figure."""
    pixels = random.integers(0, 256, (height // 16 + 1, width // 16 + 1, 3), dtype=np.uint8)
    file = io.BytesIO()
    Pictures.fromarray(pixels).resize((width, height)).save(file, "PNG")
    return Image(file.getvalue())


def ready(work: Work) -> tuple[Callable[[], float], PreTrainedModel]:
    """Return what takes a step and returns its tokens, after a first one, and the model."""
    torch.set_num_threads(1 if not torch.cuda.is_available() else torch.get_num_threads())
    model, images = work.policy()
    trainer = PolicyTrainer(
        model, work.learn(), seed=0, images=images, image_bytes=work.image_bytes
    )

    def step() -> float:
        tree = work.tree(model, images, trainer.version)
        trainer.step([tree])
        return float(sum(len(one.token_ids) for one in tree.trajectories()))

    step()
    return step, model


def steps(work: Work) -> Run:
    """Return a run of one step, warm."""
    take, model = ready(work)

    def run() -> float:
        tokens = take()
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        return tokens

    return run


def held(work: Work) -> Run:
    """Return a run whose work is the memory that is held before a step, in MB."""
    _, model = ready(work)
    return lambda: memory_mb(model, peak=False)


def added(work: Work) -> Run:
    """Return a run whose work is the memory that a step adds at most, in MB."""
    take, model = ready(work)

    def run() -> float:
        if model.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before = memory_mb(model, peak=False)
        take()
        return memory_mb(model, peak=True) - before

    return run


def memory_mb(model: PreTrainedModel, *, peak: bool) -> float:
    """Return what is held now, or was at most since it was forgotten."""
    if model.device.type == "cuda":
        asked = torch.cuda.max_memory_allocated if peak else torch.cuda.memory_allocated
        return asked() / 1e6
    return resident_kb("VmHWM" if peak else "VmRSS") / 1e3


def device() -> str:
    """Return the name of what computes."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "one CPU thread"


def main() -> None:
    """Measure, print and write."""
    arguments = parser(__doc__)
    arguments.add_argument("--config", type=Path, default=CONFIG, help="its `learn` is measured")
    arguments.add_argument("--path", help="a model folder (default: a tiny new Qwen3-VL)")
    arguments.add_argument("--images", type=positive, default=5, help="screenshots each (5)")
    arguments.add_argument("--screen", type=positive, nargs=2, default=(1280, 800), help="pixels")
    arguments.add_argument("--group", type=positive, default=8, help="trajectories (8)")
    arguments.add_argument("--said", type=positive, default=64, help="tokens of a turn (64)")
    chosen = arguments.parse_args()
    bench = Benchmark.from_arguments("vlm_step", chosen)
    quick = Work(config=chosen.config, path=chosen.path, images=2, screen=(96, 64), group=2, said=8)
    work = Work(
        config=chosen.config,
        path=chosen.path,
        images=chosen.images,
        screen=tuple(chosen.screen),
        group=chosen.group,
        said=chosen.said,
    )
    work = quick if bench.quick else work
    name = f"{work.group} x {work.images} images of {work.screen[0]} x {work.screen[1]}, {device()}"
    without = f"{name}, no encoder cache"
    runs = bench.compare(
        {
            name: Contender(set_up=partial(steps, work)),
            without: Contender(set_up=partial(steps, replace(work, image_bytes=0))),
        }
    )
    by = "wall" if torch.cuda.is_available() else "cpu"
    bench.rate(name, runs[name], unit="tokens", by=by)
    bench.ratio(f"{name}, encoder cache", runs[name], runs[without], peer="none", by=by)
    bench.row(f"{name}, tokens of a step", runs[name][0].work, unit="tokens")
    for what, set_up in (("memory held", held), ("memory a step adds", added)):
        run = measure(Contender(set_up=partial(set_up, work), own_process=True))
        bench.row(f"{name}, {what}", run.work, unit="MB", better="lower")
    bench.finish()


if __name__ == "__main__":
    main()
