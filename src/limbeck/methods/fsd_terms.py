"""Compute the terms of FSD (Jung et al. 2023): intra-feature, local and global structures, compared by CKA."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from limbeck import similarity
from limbeck._internal.files import replacing
from limbeck._internal.progress import progress
from limbeck.distillation.objective import Term
from limbeck.distillation.pair import Pair
from limbeck.errors import ModelError, RecipeError
from limbeck.models.features import Features, Needs, Wanted
from limbeck.models.pooling import left_aligned

Estimator = Literal["biased", "unbiased"]
Layer = Literal["penultimate", "last"]
Start = Literal["k-means++", "random"]


class Structure(Term):
    """Compare one layer of both models, with its tokens moved to the left and zeros for padding."""

    relational = True

    def __init__(self, pair: Pair, layer: Layer, estimator: Estimator, mask_padding: bool) -> None:
        super().__init__()
        below = 1 if layer == "penultimate" else 0
        self.student_layer = max(1, pair.student.depth - below)
        self.teacher_layer = max(1, pair.require_teacher().depth - below)
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
        """Compute -log|CKA|; 0 with zero gradient where CKA does not exist.

        A CKA of 0 that exists has no logarithm: |CKA| is raised to the smallest normal number of its dtype, which gives
        about 87 in float32, and has no gradient there.
        """
        value, exists = similarity.cka_with_validity(x, y, mask=mask, estimator=self.estimator)
        size = value.abs().clamp(min=torch.finfo(value.dtype).tiny)
        return -torch.where(exists, size, 1).log()


class Intra(Structure):
    """Compute L_I (eq. 6): how the tokens of each sample relate, averaged over samples."""

    relational = False

    def difference(self, s: Tensor, t: Tensor, mask: Tensor) -> Tensor:
        return self.minus_log_cka(s, t, mask).mean()


class Local(Structure):
    """Compute L_L (eq. 7): how the samples of the batch relate, with the tokens of each side by side."""

    def difference(self, s: Tensor, t: Tensor, mask: Tensor) -> Tensor:
        return self.minus_log_cka(s.flatten(1), t.flatten(1))


class Global(Structure):
    """Compute L_G (eqs. 8-10): how samples relate to centroids of the training set, and the centroids to each other.

    The teacher's centroids (C, L, D) come from k-means over the training set and stay; the student's start at random,
    are trained with the student and are not part of it. L is the longest training text, beyond which all is padding.
    """

    relational = False
    teacher_memory: Tensor
    # The teacher's centroids, C x C: CKA does not notice a rotation, and one leaves only zeros after column C.
    teacher_rotated: Tensor

    def __init__(
        self,
        pair: Pair,
        layer: Layer,
        estimator: Estimator,
        mask_padding: bool,
        gamma_m: float,
        memory: int,
        passes: int,
        start: Start,
    ) -> None:
        super().__init__(pair, layer, estimator, mask_padding)
        self.gamma_m, self.size, self.passes, self.start = gamma_m, memory, passes, start
        self.student_width = pair.student.width
        # shapes are known once the data have been seen, or a checkpoint is loaded
        self.register_buffer("teacher_memory", torch.empty(0))
        self.register_buffer("teacher_rotated", torch.empty(0), persistent=False)
        self.student_memory = nn.Parameter(torch.empty(0))

    def prepare(self, teacher: Any, batches: Iterable[Mapping[str, Tensor]], folder: Path | None = None) -> None:
        """Find the teacher's centroids by k-means over its features; ``folder`` keeps them after each pass."""
        sizes = [(len(batch["attention_mask"]), int(self._length(batch))) for batch in batches]
        samples, longest = sum(rows for rows, _ in sizes), max(length for _, length in sizes)
        if samples < self.size:
            raise RecipeError(
                f"FSD's memory has {self.size} centroids, but there are only {samples} training examples. "
                f"Set method.memory={samples} or less."
            )
        centroids, done = _load_centroids(folder)
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
                how: dict[str, Any] = {"seed": seed, "passes": 1, "start": centroids, "init": self.start}
                result = similarity.kmeans(features, self.size, **how)
                centroids, done = result.centroids, done + 1
                _save_centroids(folder, centroids, done)
        assert centroids is not None
        self.teacher_memory = centroids.view(self.size, longest, -1).float()
        self._rotate()
        # of the teacher's spread, so that distances start on the same scale
        shape = (self.size, longest, self.student_width)
        self.student_memory.data = torch.randn(shape).to(centroids.device) * self.teacher_memory.std()

    def _rotate(self) -> None:
        rows = self.teacher_memory.flatten(1).double()
        self.teacher_rotated = torch.linalg.qr((rows - rows.mean(0)).T, mode="r").R.T.float()

    def _length(self, batch: Mapping[str, Tensor]) -> Tensor:
        mask = batch["attention_mask"]
        return mask.sum(1).max() if self.mask_padding else torch.tensor(mask.shape[1])

    def difference(self, s: Tensor, t: Tensor, mask: Tensor) -> Tensor:
        if self.student_memory.numel() == 0:
            raise ModelError("FSD's memory is empty: call objective.prepare(teacher, batches) before training.")
        distance_s, cosine_s = to_centroids(s, self.student_memory)
        distance_t, cosine_t = to_centroids(t, self.teacher_memory)
        f_mm = self.minus_log_cka(self.student_memory.flatten(1), self.teacher_rotated)
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
            self._rotate()


def to_centroids(tokens: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Return distances and cosines (B, C) between samples (B, l, D) and centroids (C, L, D); missing tokens are 0."""
    width = min(tokens.shape[1], memory.shape[1])
    with torch.autocast(device_type=tokens.device.type, enabled=False):  # distances are differences of these
        products = tokens[:, :width].flatten(1) @ memory[:, :width].flatten(1).T
    squares = similarity.squared_norm(tokens.flatten(1))[:, None], similarity.squared_norm(memory.flatten(1))
    # rounding can leave a tiny negative; the clamp also keeps the root's gradient finite at a centroid
    smallest = torch.finfo(products.dtype).eps
    distance = (squares[0] + squares[1] - 2 * products).clamp(min=smallest).sqrt()
    return distance, products / (squares[0] * squares[1]).clamp(min=smallest).sqrt()


def _load_centroids(folder: Path | None) -> tuple[Tensor | None, int]:
    file = folder / "memory.safetensors" if folder is not None else None
    if file is None or not file.is_file():
        return None, 0
    saved = load_file(file)
    return saved["centroids"], int(saved["passes"])


def _save_centroids(folder: Path | None, centroids: Tensor, passes: int) -> None:
    if folder is not None:
        with replacing(folder / "memory.safetensors") as temporary:
            save_file({"centroids": centroids.contiguous().cpu(), "passes": torch.tensor(passes)}, temporary)
