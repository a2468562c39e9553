"""Feature structure distillation (Jung et al. 2023): intra-feature, local and global structures compared by CKA."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from limbeck import similarity
from limbeck._internal.files import replacing
from limbeck._internal.progress import progress
from limbeck.distillation.objective import Objective, Term
from limbeck.distillation.pair import Pair
from limbeck.errors import ModelError, RecipeError
from limbeck.methods.ft import TaskLoss
from limbeck.methods.kd import SoftLogits
from limbeck.models.features import Features, Needs, Wanted
from limbeck.models.pooling import left_aligned
from limbeck.options import Count, Positive, Share, Weight

Estimator = Literal["biased", "unbiased"]


class Structure(Term):
    """What the three structures share: the penultimate layer of each model, tokens moved to the left, padding 0."""

    relational = True

    def __init__(self, pair: Pair, estimator: Estimator, mask_padding: bool) -> None:
        super().__init__()
        self.student_layer = max(1, pair.student.depth - 1)
        self.teacher_layer = max(1, pair.require_teacher().depth - 1)
        self.estimator, self.mask_padding = estimator, mask_padding

    def needs(self) -> Needs:
        return Needs(
            Wanted(hidden=[self.student_layer]),
            Wanted(hidden=[self.teacher_layer], padding=not self.mask_padding),
        )

    def forward(self, student: Features, teacher: Features, batch: Mapping[str, Tensor]) -> Tensor:
        key = ("structures", self.mask_padding)
        s, t, mask = student.memoize(key, teacher, lambda: self._both(student, teacher))
        return self.difference(s, t, mask)

    def _both(self, student: Features, teacher: Features) -> tuple[Tensor, Tensor, Tensor]:
        hidden = student.hidden[self.student_layer], teacher.hidden[self.teacher_layer]
        (s, t), mask = self.tokens(student.mask, *hidden)
        return s, t, mask

    def tokens(self, mask: Tensor, *hidden: Tensor) -> tuple[list[Tensor], Tensor]:
        counted = mask if self.mask_padding else torch.ones_like(mask)
        return left_aligned(counted, *(h.float() for h in hidden))

    def difference(self, s: Tensor, t: Tensor, mask: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} defines no difference(s, t, mask).")

    def minus_log_cka(self, x: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """-log|CKA|; 0 where CKA does not exist, which it says with an exact 0."""
        value = similarity.cka(x, y, mask=mask, estimator=self.estimator)
        return -torch.where(value == 0, 1, value.abs()).log()


class Intra(Structure):
    """L_I (eq. 6): in each sample, how its tokens relate; the mean over samples."""

    relational = False

    def difference(self, s: Tensor, t: Tensor, mask: Tensor) -> Tensor:
        return self.minus_log_cka(s, t, mask).mean()


class Local(Structure):
    """L_L (eq. 7): how the samples of the batch relate, their tokens side by side."""

    def difference(self, s: Tensor, t: Tensor, mask: Tensor) -> Tensor:
        return self.minus_log_cka(s.flatten(1), t.flatten(1))


class Global(Structure):
    """L_G (eqs. 8-10): how samples relate to centroids of the whole training set, and the centroids to each other.

    The teacher's centroids (C, L, D) come from k-means over the training set and stay; the student's start at random,
    are trained with the student and are not part of it. L is the longest training text, beyond which all is padding.
    """

    relational = False
    teacher_memory: Tensor
    teacher_turned: (
        Tensor  # the teacher's centroids, C x C: a rotation, which CKA does not notice, leaves zeros behind C
    )

    def __init__(
        self, pair: Pair, estimator: Estimator, mask_padding: bool, gamma_m: float, memory: int, passes: int
    ) -> None:
        super().__init__(pair, estimator, mask_padding)
        self.gamma_m, self.size, self.passes = gamma_m, memory, passes
        self.student_width = pair.student.width
        # shapes are known once the data have been seen, or a checkpoint is loaded
        self.register_buffer("teacher_memory", torch.empty(0))
        self.register_buffer("teacher_turned", torch.empty(0), persistent=False)
        self.student_memory = nn.Parameter(torch.empty(0))

    def prepare(self, teacher: Any, batches: Iterable[Mapping[str, Tensor]], folder: Path | None = None) -> None:
        """The unsupervised memory stage: k-means over the teacher's features, saved after each pass."""
        sizes = [(len(batch["attention_mask"]), int(self._length(batch))) for batch in batches]
        samples, longest = sum(rows for rows, _ in sizes), max(length for _, length in sizes)
        if samples < self.size:
            raise RecipeError(
                f"FSD's memory has {self.size} centroids, but there are only {samples} training examples. "
                f"Set method.memory={samples} or less."
            )
        centroids, done = _saved(folder)
        seed = torch.initial_seed() % 2**31
        passes = self.passes - done + (centroids is None)
        with progress("k-means of the teacher's features", len(sizes) * passes) as steps:

            def features() -> Iterator[Tensor]:
                for batch in batches:
                    steps.advance()
                    found = teacher(batch, self.needs().teacher)
                    (tokens,), _ = self.tokens(found.mask, found.hidden[self.teacher_layer])
                    missing = longest - min(longest, tokens.shape[1])
                    yield nn.functional.pad(tokens[:, :longest], (0, 0, 0, missing)).flatten(1)

            while done < self.passes:
                result = similarity.kmeans(features, self.size, seed=seed, passes=1, start=centroids)
                centroids, done = result.centroids, done + 1
                _save(folder, centroids, done)
        assert centroids is not None
        self.teacher_memory = centroids.view(self.size, longest, -1).float()
        self._turn()
        # of the teacher's spread, so that distances start on the same scale
        shape = (self.size, longest, self.student_width)
        self.student_memory.data = torch.randn(shape).to(centroids.device) * self.teacher_memory.std()

    def _turn(self) -> None:
        rows = self.teacher_memory.flatten(1).double()
        self.teacher_turned = torch.linalg.qr((rows - rows.mean(0)).T, mode="r").R.T.float()

    def _length(self, batch: Mapping[str, Tensor]) -> Tensor:
        mask = batch["attention_mask"]
        return mask.sum(1).max() if self.mask_padding else torch.tensor(mask.shape[1])

    def difference(self, s: Tensor, t: Tensor, mask: Tensor) -> Tensor:
        if self.student_memory.numel() == 0:
            raise ModelError("FSD's memory is empty: call objective.prepare(teacher, batches) before training.")
        distance_s, cosine_s = to_centroids(s, self.student_memory)
        distance_t, cosine_t = to_centroids(t, self.teacher_memory)
        f_mm = self.minus_log_cka(self.student_memory.flatten(1), self.teacher_turned)
        f_mh_e = (distance_t - distance_s).square().mean()
        f_mh_c = (cosine_t - cosine_s).square().mean()
        return self.gamma_m * f_mh_e + (1 - self.gamma_m) * f_mh_c + f_mm

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        for name in ("teacher_memory", "student_memory"):
            saved, own = state_dict.get(prefix + name), getattr(self, name)
            if saved is not None and saved.shape != own.shape:
                own.data = torch.empty_like(saved)
        super()._load_from_state_dict(state_dict, prefix, *args)
        if self.teacher_memory.numel():
            self._turn()


def to_centroids(tokens: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Euclidean distance and cosine (B, C) between samples (B, l, D) and centroids (C, L, D); missing tokens are 0."""
    width = min(tokens.shape[1], memory.shape[1])
    products = tokens[:, :width].flatten(1) @ memory[:, :width].flatten(1).T
    squares = similarity.squared_norm(tokens.flatten(1))[:, None], similarity.squared_norm(memory.flatten(1))
    # rounding can leave a tiny negative; the clamp also keeps the root's gradient finite at a centroid
    smallest = torch.finfo(products.dtype).eps
    distance = (squares[0] + squares[1] - 2 * products).clamp(min=smallest).sqrt()
    return distance, products / (squares[0] * squares[1]).clamp(min=smallest).sqrt()


def _saved(folder: Path | None) -> tuple[Tensor | None, int]:
    file = folder / "memory.safetensors" if folder is not None else None
    if file is None or not file.is_file():
        return None, 0
    saved = load_file(file)
    return saved["centroids"], int(saved["passes"])


def _save(folder: Path | None, centroids: Tensor, passes: int) -> None:
    if folder is not None:
        with replacing(folder / "memory.safetensors") as temporary:
            save_file({"centroids": centroids.contiguous().cpu(), "passes": torch.tensor(passes)}, temporary)


def fsd(
    pair: Pair,
    *,
    alpha: Share = 0.5,
    temperature: Positive = 10.0,
    beta: Weight = 4.0,
    gamma_i: Weight = 1.0,
    gamma_l: Weight = 1.0,
    gamma_g: Weight = 1e-4,
    gamma_m: Share = 1e-6,
    memory: Count = 100,
    passes: Count = 3,
    estimator: Estimator = "biased",
    mask_padding: bool = True,
) -> Objective:
    """Feature structure distillation: intra-feature, local and global structures of the penultimate layer.

    Equation: L = α·CE(y, s) + (1-α)·T²·KL(softmax(t/T) ‖ softmax(s/T)) + β·(γᵢ·L_I + γₗ·L_L + γ_g·L_G), L_I and L_L
    -log|CKA| between tokens of a sample and between samples, L_G = γₘ·F_Mh^E + (1-γₘ)·F_Mh^C + F_MM with centroids.
    Left open by the paper: padding (ignored here), and the start of the student's memory (normal, with the spread of
    the teacher's).
    Citation: Jung, Kim, Na and Kim, 2023, "Feature Structure Distillation with Centered Kernel Alignment in BERT
    Transferring".

    Options:
        alpha: weight of the labels against the teacher's logits, 0 to 1
        temperature: T, softens both distributions
        beta: weight of the structures (paper: 3, 4, 5 or 6)
        gamma_i: weight of the intra-feature structure
        gamma_l: weight of the local inter-feature structure
        gamma_g: weight of the global inter-feature structure
        gamma_m: Euclidean against cosine in the global structure, 0 to 1
        memory: number of centroids (paper: 100; 300 for QQP and MNLI)
        passes: passes of k-means over the training set
        estimator: of HSIC: biased (eq. 5) or unbiased
        mask_padding: false lets padding count, as code that pads to a fixed length does
    """
    return Objective(
        task=(alpha, TaskLoss(pair)),
        kd=(1 - alpha, SoftLogits(pair.problem, temperature)),
        intra=(beta * gamma_i, Intra(pair, estimator, mask_padding)),
        local=(beta * gamma_l, Local(pair, estimator, mask_padding)),
        memory=(beta * gamma_g, Global(pair, estimator, mask_padding, gamma_m, memory, passes)),
    )


def _ablation(name: str, row: str, **weights: float) -> Callable[..., Objective]:
    """`fsd` with some weights at 0 and without the options that are then idle: a row of the paper's table 4."""
    idle = set(weights) | ({"gamma_m", "memory", "passes"} if weights.get("gamma_g") == 0 else set())

    def method(pair: Pair, **options: Any) -> Objective:
        return fsd(pair, **weights, **options)  # type: ignore[arg-type]

    signature = inspect.signature(fsd, eval_str=True)
    kept = [parameter for key, parameter in signature.parameters.items() if key not in idle]
    lines = inspect.getdoc(fsd).splitlines()[1:]  # type: ignore[union-attr]
    described = [line for line in lines if line.strip().partition(":")[0] not in idle]
    zero = ", ".join(f"{key} = {value:g}" for key, value in weights.items())
    method.__doc__ = "\n".join([f"Feature structure distillation, {row} ({zero}).", *described])
    method.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    method.__annotations__ = {parameter.name: parameter.annotation for parameter in kept}
    method.__name__ = method.__qualname__ = name
    return method


fsd_i = _ablation("fsd_i", "intra-feature structure alone", gamma_l=0.0, gamma_g=0.0)
fsd_l = _ablation("fsd_l", "local inter-feature structure alone", gamma_i=0.0, gamma_g=0.0)
fsd_g = _ablation("fsd_g", "global inter-feature structure alone", gamma_i=0.0, gamma_l=0.0)
fsd_il = _ablation("fsd_il", "without the global structure", gamma_g=0.0)
