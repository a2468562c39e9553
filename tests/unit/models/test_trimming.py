"""Trimmed vocabularies: the same ids, renumbered, and the same logits, on every text of kept pieces."""

from __future__ import annotations

import copy
import csv
import json
import random
from itertools import islice

import pytest
import torch
from helpers.real_data import BANKING, ENCODER, needs_encoder, real_tokenizer
from helpers.tiny_models import DECODERS, SIZES, tiny_model
from helpers.tiny_tables import WORDS
from helpers.tiny_tokenizers import STYLES, make_bpe
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerFast

from limbeck import trim_vocabulary
from limbeck.errors import ModelError
from limbeck.models.trimmed_tokenizer import kept_by
from limbeck.models.trimming import restore_vocabulary

SEEN = ["the cat sees a big bird", "never the small dog, but often a fish"]  # of WORDS, and a comma
OTHER = ["bright cats chase unhappy doves", "quick-quick! naïve Ω 12.5"]
NAMED = dict(pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>", mask_token="<mask>")
NAMED |= dict(cls_token="<s>", sep_token="</s>")


def corpus():
    draw = random.Random(0)
    return [" ".join(draw.choices([*WORDS, "birds", "catch", "unhappy", "ning", ","], k=9)) for _ in range(400)]


def unigram():
    """Train a Unigram tokenizer on words; ``<pad>`` is the second piece, as in XLM-R."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.UnigramTrainer(vocab_size=160, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    ends = [("<s>", 0), ("</s>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> $B </s>", ends)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **NAMED)


def byte_level():
    """Train a byte-level BPE with all bytes, as GPT-2's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special, bytes_ = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=special, initial_alphabet=bytes_, show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **NAMED)


def word_pieces():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    special = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", "[PAD]"]
    tokenizer.train_from_iterator(
        corpus(), trainers.WordPieceTrainer(vocab_size=160, special_tokens=special, show_progress=False)
    )
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    names = dict(unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]", pad_token="[PAD]")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


KINDS = {"Unigram": unigram, "BPE": byte_level, "WordPiece": word_pieces}


@pytest.fixture(scope="module", params=KINDS)
def whole(request):
    return KINDS[request.param]()


def model_for(tokenizer, family="bert", **changes):
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    named = {name: value for name, value in ids.items() if value is not None}
    size = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    return tiny_model(family, 2, **size | named | changes).eval()


def old_ids(trimmed, text):
    return [trimmed.kept[index] for index in trimmed.tokenizer(text)["input_ids"]]


def test_texts_of_kept_pieces_are_split_as_before(whole):
    trimmed = trim_vocabulary(model_for(whole), whole, SEEN)
    assert len(trimmed.kept) < len(whole)
    kept, draw = set(trimmed.kept), random.Random(1)
    pieces = [index for index in trimmed.kept if index not in whole.all_special_ids]
    same = 0
    for _ in range(2_000):
        text = whole.decode(draw.choices(pieces, k=draw.randint(1, 12))) + draw.choice(["", " ", " the", "s a"])
        before = whole(text)["input_ids"]
        if kept.issuperset(before):
            same += 1
            assert old_ids(trimmed, text) == before
    assert same > 200
    for pair in [(SEEN[0], SEEN[1]), (SEEN[1], OTHER[0])]:
        before, after = (side(*pair, return_token_type_ids=True) for side in (whole, trimmed.tokenizer))
        if kept.issuperset(before["input_ids"]):
            assert [trimmed.kept[index] for index in after["input_ids"]] == before["input_ids"]
            assert after["token_type_ids"] == before["token_type_ids"]


def test_what_could_be_written_can_still_be(whole):
    trimmed = trim_vocabulary(model_for(whole), whole, SEEN)
    draw, letters = random.Random(2), "".join(WORDS) + " ,"
    texts = ["".join(draw.choices(letters, k=30)) for _ in range(300)] + corpus()
    known = [text for text in texts if whole.unk_token_id not in whole(text)["input_ids"]]
    assert len(known) > 300
    for text in known:
        ids = trimmed.tokenizer(text)["input_ids"]
        assert trimmed.tokenizer.unk_token_id not in ids
        plain = dict(skip_special_tokens=True)
        assert trimmed.tokenizer.decode(ids, **plain) == whole.decode(whole(text)["input_ids"], **plain)
    # and what was unknown is unknown in the same places
    for text in ("the cat Ω", "Ωcat sees", "aΩ"):
        before = [whole.unk_token_id == index for index in whole(text)["input_ids"]]
        if any(before) and set(trimmed.kept).issuperset(whole(text)["input_ids"]):
            assert old_ids(trimmed, text) == whole(text)["input_ids"]


def test_every_way_to_make_a_kept_piece_is_kept():
    whole = byte_level()
    trimmed = trim_vocabulary(model_for(whole), whole, SEEN)
    state = json.loads(trimmed.tokenizer.backend_tokenizer.to_str())["model"]
    assert all(piece in state["vocab"] for left, right in state["merges"] for piece in (left, right, left + right))
    assert set(pre_tokenizers.ByteLevel.alphabet()) <= set(state["vocab"])
    text = "日本 Ω naïve \x00 cats"
    assert trimmed.tokenizer.decode(trimmed.tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_saved_and_loaded_it_is_the_same(whole, tmp_path):
    trimmed = trim_vocabulary(model_for(whole), whole, SEEN)
    trimmed.tokenizer.save_pretrained(tmp_path)
    trimmed.model.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    for text in [*SEEN, *OTHER]:
        assert again(text)["input_ids"] == trimmed.tokenizer(text)["input_ids"]
    assert again.special_tokens_map == whole.special_tokens_map
    assert kept_by(again, whole) == trimmed.kept and kept_by(whole, whole) is None
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert model.config.vocab_size == len(again) == model.get_input_embeddings().num_embeddings
    assert model.config.pad_token_id == again.pad_token_id


@pytest.mark.parametrize("problem", ["classification", "language_model"])
@pytest.mark.parametrize("family", SIZES)
def test_logits_are_the_same_to_the_bit(family, problem, tokenizer, tmp_path):
    if family in STYLES:
        tokenizer = AutoTokenizer.from_pretrained(make_bpe(tmp_path, STYLES[family]))
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    texts = [text.replace(",", "") for text in SEEN]
    model = model_for(tokenizer, family, problem=problem)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trimmed = trim_vocabulary(model, tokenizer, texts)
    assert len(trimmed.kept) < len(tokenizer) == model.config.vocab_size and type(trimmed.model) is type(model)
    batches = [side(texts, padding=True, return_tensors="pt") for side in (tokenizer, trimmed.tokenizer)]
    kept = torch.tensor(trimmed.kept)
    assert torch.equal(kept[batches[1]["input_ids"]], batches[0]["input_ids"])
    for batch in batches:
        batch.pop("token_type_ids", None)
    with torch.no_grad():
        theirs, ours = model(**batches[0]).logits, trimmed.model(**batches[1]).logits
    if problem == "language_model":
        # a product with fewer columns may be summed in another order
        torch.testing.assert_close(ours, theirs[..., kept], rtol=0, atol=1e-6)
        tied = model.config.tie_word_embeddings
        assert (trimmed.model.get_output_embeddings().weight is trimmed.model.get_input_embeddings().weight) == tied
    else:
        assert torch.equal(ours, theirs)
    config = trimmed.model.config
    for name in ("pad", "bos", "eos", "cls", "sep", "mask"):
        if (old := getattr(model.config, f"{name}_token_id", None)) in trimmed.kept:
            assert trimmed.kept[getattr(config, f"{name}_token_id")] == old
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert family in DECODERS or trimmed.model.get_input_embeddings().padding_idx == config.pad_token_id


def test_positions_that_follow_the_padding_id_stay():
    whole = unigram()
    whole.pad_token = "▁the"  # in the middle of the pieces
    model = model_for(whole, "roberta", max_position_embeddings=300)
    trimmed = trim_vocabulary(model, whole, SEEN)
    assert trimmed.model.config.pad_token_id == whole.pad_token_id == trimmed.tokenizer.pad_token_id
    ids, new = (torch.tensor([side(SEEN[0])["input_ids"]]) for side in (whole, trimmed.tokenizer))
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, trimmed.model(input_ids=new).logits)


def test_random_numbers_go_on_as_without_trimming(tokenizer):
    model = model_for(tokenizer)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    trim_vocabulary(model, tokenizer, SEEN)
    assert torch.equal(torch.rand(3), expected)


def test_unseen_pieces_are_counted(tokenizer):
    trimmed = trim_vocabulary(model_for(tokenizer), tokenizer, ["the cat"], further=["a dog"])
    assert {"the", "cat", "a", "dog"} <= set(trimmed.tokenizer.get_vocab())
    found = trimmed.unseen(["the dog sees a bird Ω", "cat"])
    assert (found.lost, found.unknown) == (2 / 7, 1 / 7)
    assert trimmed.unseen([]).lost == 0


def test_rows_beyond_the_tokenizer_go(tokenizer):
    model = model_for(tokenizer, vocab_size=len(tokenizer) + 8)
    trimmed = trim_vocabulary(model, tokenizer, SEEN)
    assert trimmed.model.config.vocab_size == len(trimmed.kept) == len(trimmed.tokenizer)


def test_added_tokens_stay(tokenizer_folder):
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    tokenizer.add_tokens(["<person>", "<place>"])
    trimmed = trim_vocabulary(model_for(tokenizer), tokenizer, SEEN)
    assert old_ids(trimmed, "the <place> <person>") == tokenizer("the <place> <person>")["input_ids"]


class TestBadInput:
    def test_other_kinds(self):
        words = Tokenizer(models.WordLevel({"<unk>": 0, "cat": 1}, unk_token="<unk>"))
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", pad_token="<unk>")
        with pytest.raises(ModelError, match=r"cannot be trimmed: its kind is WordLevel.*Leave the vocabulary whole"):
            trim_vocabulary(model_for(tokenizer), tokenizer, SEEN)

    def test_bpe_that_is_drawn(self):
        tokenizer = byte_level()
        tokenizer.backend_tokenizer.model.dropout = 0.5
        with pytest.raises(ModelError, match=r"its BPE has dropout=0\.5"):
            trim_vocabulary(model_for(tokenizer), tokenizer, SEEN)

    def test_slow_tokenizers(self, tokenizer):
        class Slow:
            all_special_ids = ()

            def __call__(self, texts, **_):
                return {"input_ids": [[0] for _ in texts]}

        with pytest.raises(ModelError, match="a slow tokenizer"):
            trim_vocabulary(model_for(tokenizer), Slow(), SEEN)

    def test_models_without_room_for_all_tokens(self, tokenizer):
        model = model_for(tokenizer, vocab_size=len(tokenizer) - 60)
        with pytest.raises(ModelError, match="resize_token_embeddings"):
            trim_vocabulary(model, tokenizer, [" ".join(WORDS)])

    def test_weights_that_share_the_vocabulary_in_another_way(self, tokenizer):
        model = model_for(tokenizer)
        model.extra = torch.nn.Linear(2, len(tokenizer))
        with pytest.raises(ModelError, match=r"'extra\.weight'"):
            trim_vocabulary(model, tokenizer, SEEN)


def banking(count):
    if not BANKING.is_dir():
        pytest.skip("real data are not at ../shared/data/banking77")
    sides = []
    for name in ("train", "test"):
        with (BANKING / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            sides.append([row["text"] for row in islice(csv.DictReader(file), count)])
    return sides


@pytest.mark.real
@pytest.mark.parametrize(("name", "singles"), [("gte-small", 2 * 997), ("roberta", 256), ("gpt2", 256)])
def test_real_vocabularies(name, singles):
    texts, others = banking(1_000)
    whole = real_tokenizer(name)
    family = {"gte-small": "bert", "roberta": "roberta", "gpt2": "gpt2"}[name]
    trimmed = trim_vocabulary(model_for(whole, family), whole, texts)
    assert singles < len(trimmed.kept) < singles + 3_000
    kept = set(trimmed.kept)
    unchanged = 0
    for text in [*texts, *others]:
        before = whole(text)["input_ids"]
        if kept.issuperset(before):
            unchanged += 1
            assert old_ids(trimmed, text) == before
        assert trimmed.tokenizer.decode(trimmed.tokenizer(text)["input_ids"]) == whole.decode(before)
    assert len(texts) < unchanged < len(texts) + len(others)
    for text in ("Zürich, 東京 & Ωmega; 😀 <b>", "a" * 90, " \t\n"):
        assert (whole.unk_token_id in whole(text)["input_ids"]) == (
            trimmed.tokenizer.unk_token_id in trimmed.tokenizer(text)["input_ids"]
        )


@pytest.mark.real
@needs_encoder
def test_a_real_encoder():
    texts = banking(24)[0]
    model = AutoModelForSequenceClassification.from_pretrained(ENCODER).eval()
    whole = AutoTokenizer.from_pretrained(ENCODER)
    trimmed = trim_vocabulary(model, whole, texts)
    with torch.no_grad():
        theirs, ours = (
            net(**side(texts, padding=True, return_tensors="pt")).logits
            for net, side in ((model, whole), (trimmed.model, trimmed.tokenizer))
        )
    assert torch.equal(ours, theirs)
    assert trimmed.model.num_parameters() < model.num_parameters() - 10_000_000


@pytest.mark.parametrize("family", SIZES)
def test_restored_it_reads_all_texts_again(family, tokenizer, tmp_path):
    """Change a trimmed model, give it all pieces back, and compare with the original that was changed by hand."""
    if family in STYLES:
        tokenizer = AutoTokenizer.from_pretrained(make_bpe(tmp_path, STYLES[family]))
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    whole = model_for(tokenizer, family, vocab_size=len(tokenizer) + 3)
    trimmed = trim_vocabulary(whole, tokenizer, SEEN)
    before = {name: value.clone() for name, value in whole.state_dict().items()}
    with torch.no_grad():
        trimmed.model.get_input_embeddings().weight.mul_(1.5)
    restored = restore_vocabulary(trimmed.model, trimmed.kept, whole)
    assert all(torch.equal(value, before[name]) for name, value in whole.state_dict().items())
    expected = copy.deepcopy(whole)
    with torch.no_grad():
        expected.get_input_embeddings().weight[list(trimmed.kept)] *= 1.5
        batch = tokenizer([*SEEN, *OTHER], padding=True, return_tensors="pt")
        batch.pop("token_type_ids", None)
        assert torch.equal(restored(**batch).logits, expected(**batch).logits)
    assert restored.config.to_dict() == whole.config.to_dict()
    assert restored.get_input_embeddings().padding_idx == whole.get_input_embeddings().padding_idx


def test_only_what_it_was_trimmed_from_restores_it(tokenizer):
    model = model_for(tokenizer)
    trimmed = trim_vocabulary(model, tokenizer, SEEN)
    with pytest.raises(ModelError, match=r"embeddings, which are not 5 of the"):
        restore_vocabulary(trimmed.model, trimmed.kept[:5], model)
    with pytest.raises(ModelError, match=r"Name the model that this one was made from"):
        restore_vocabulary(trimmed.model, trimmed.kept, model_for(tokenizer, hidden_size=16))
    language = trim_vocabulary(model_for(tokenizer, problem="language_model"), tokenizer, SEEN)
    with pytest.raises(ModelError, match=r"what they are for other pieces is not known"):
        restore_vocabulary(language.model, language.kept, model)


def test_random_numbers_go_on_as_without_restoring(tokenizer):
    model = model_for(tokenizer)
    trimmed = trim_vocabulary(model, tokenizer, SEEN)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    restore_vocabulary(trimmed.model, trimmed.kept, model)
    assert torch.equal(torch.rand(3), expected)
