"""Load the teachers that a recipe names: mostly one model; or a file of answers, or several of both."""

from __future__ import annotations

from dataclasses import dataclass, replace

from limbeck.distillation.fingerprint import model_digest
from limbeck.errors import ModelError
from limbeck.models.loading import count_parameters, load_teacher, load_tokenizer
from limbeck.protocols import Model, Tokenizer
from limbeck.recipes.teacher_block import TeacherBlock
from limbeck.tasks.answer_file import AnswerFile, Kind
from limbeck.tasks.task import Task
from limbeck.training.vocabulary import NamedTeacher, fit_to_student


@dataclass(frozen=True)
class Member:
    """Hold one teacher: a model, or the answers in a file."""

    block: TeacherBlock
    weight: float
    model: Model | None = None
    no_head: ModelError | None = None  # what to say where a model's predictions are needed, and it has no head for them
    answers: AnswerFile | None = None
    named: NamedTeacher | None = None  # where ``model`` is a trimmed copy

    @classmethod
    def load(cls, block: TeacherBlock, weight: float, task: Task) -> Member:
        """Load what a block names."""
        if block.model is not None:
            return cls(block, weight, *load_teacher(block.model, task))
        kind: Kind = "probabilities" if block.probabilities is not None else "logits"
        return cls(block, weight, answers=AnswerFile(block.answers, kind, task))

    def used_as(self, model: Model) -> Member:
        """Return the member with the model that the run works with, its own or a trimmed copy."""
        if self.model is None or model is self.model:
            return self
        return replace(self, model=model, named=NamedTeacher.of(self.model))

    def digest(self) -> str:
        """Return a short text for what teaches, as its files hold it."""
        if self.answers is not None:
            return self.answers.digest
        assert self.model is not None
        return self.named.digest if self.named is not None else model_digest(self.model)

    def parameters(self) -> int | None:
        """Count the parameters of a model as its files hold it; None for a file."""
        if self.model is None:
            return None
        return self.named.parameters if self.named is not None else count_parameters(self.model)


@dataclass(frozen=True)
class Team:
    """Hold all teachers of a run, in the recipe's order: none, one or several."""

    members: tuple[Member, ...] = ()

    @classmethod
    def load(cls, block: TeacherBlock | None, task: Task) -> Team:
        """Load what a recipe names."""
        if block is None:
            return cls()
        named = zip(block.members, block.weights, strict=True)
        return cls(tuple(Member.load(one, weight, task) for one, weight in named))

    @property
    def several(self) -> bool:
        """Tell whether there is more than one teacher."""
        return len(self.members) > 1

    @property
    def place(self) -> int | None:
        """Return the place of the teacher whose hidden states are compared; None where no teacher has any."""
        models = [place for place, member in enumerate(self.members) if member.model is not None]
        chosen = [place for place in models if self.members[place].block.followed]
        return next(iter([*chosen, *models]), None)

    @property
    def followed(self) -> Member | None:
        """Return that teacher."""
        return None if self.place is None else self.members[self.place]

    @property
    def has_files(self) -> bool:
        """Tell whether a file is among the teachers."""
        return any(member.answers is not None for member in self.members)

    def fitted(self, tokenizer: Tokenizer, followed: Model | None, task: Task) -> Team:
        """Return the team with models that read by the student's tokenizer; raise where one cannot."""
        members = []
        for place, member in enumerate(self.members):
            if member.model is None:
                members.append(member)
            elif place == self.place and followed is not None:
                members.append(member.used_as(followed))
            else:
                own = load_tokenizer(member.block.source)
                members.append(member.used_as(fit_to_student(tokenizer, member.model, own, task)[1]))
        return Team(tuple(members))

    def digest(self) -> str | None:
        """Return a short text for all teachers, as their files hold them; None where there is none."""
        found = [member.digest() for member in self.members]
        return " ".join(found) or None


NOBODY = Team()  # of a recipe without a teacher
