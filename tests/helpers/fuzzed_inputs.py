"""Draw inputs that are almost right: valid recipes and command lines, broken in one to three places."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import yaml
from hypothesis import strategies as st

LONG = "x" * 5_000
LAUGHS = "&a [1,1,1,1,1,1,1,1,1]"
for _name, _last in zip("bcdefghij", "abcdefghi", strict=True):
    LAUGHS = f"[{LAUGHS}, &{_name} [{','.join([f'*{_last}'] * 9)}]]"
TEXTS = [
    "",
    " ",
    "é",
    "日本語",
    "\u202e\u2028",
    "🙂",
    "a\nb",
    "\x1b[31m",
    "[red]x[/red]",
    "[/]",
    "%s{0}",
    "../../x",
    ".",
]
TEXTS += ["nan", "auto", "off", "null", "first:999", "uniform:-1", "os:system", ":", ":x", ".x:y", "no such:f", "kd"]
TEXTS += ["..", "/", "~", "~nobody/x", "/dev/null", "in", "x" * 300, LONG, "a=b", "'", '"', "{", "1e400", "0x1F"]
NUMBERS = [0, 1, -1, 2**31, 2**63, 10**30, -(2**63), 0.5, 1e-300, 1e308, -0.0, math.nan, math.inf, -math.inf]
VALUES = [*TEXTS, *NUMBERS, True, False, None, [], {}, [[]], [None], [1, "a"], {"a": {"b": {}}}, {"name": "kd"}, {1: 2}]
VALUES += [{None: None}, [[1, 2]], [[0, 99]], list(range(200)), {str(number): number for number in range(60)}]

TASK = {"name": "table", "train": "in/train.csv", "validation": "in/dev.csv", "text": "text", "label": "label"}
TASK["max_length"] = 16  # type: ignore[assignment]
TRAIN = {
    "epochs": 1,
    "batch_size": 8,
    "learning_rate": 1e-3,
    "max_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
}
KD: dict[str, Any] = {
    "task": TASK,
    "teacher": {"model": "in/teacher", "cache": "off", "confirmed": True},
    "student": {"from": "teacher", "keep": "first:2"},
    "method": {"name": "kd", "temperature": 5, "alpha": 0.5},
    "train": TRAIN,
    "seed": 0,
}
SMALL = {"config": {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}}
REPORTED = {"metric": "accuracy", "value": 66.61, "sd": 1.01, "where": "table 2"}
RECIPES: list[dict[str, Any]] = [
    KD,
    KD | {"method": {"name": "fsd", "beta": 4, "gamma_i": 1.0, "memory": 4, "passes": 1}, "reported": REPORTED},
    KD | {"method": {"name": "fcd", "layers": [[1, 2], [2, 4]]}, "grid": {"method.alpha": [0.1, 0.5]}},
    KD | {"student": SMALL, "method": {"name": "pkd"}},
    KD | {"stages": [{"method": {"name": "cka"}, "train": {"epochs": 2}}, {"method": {"name": "kd"}}]},
    KD | {"method": {"name": "tinybert"}, "student": SMALL},
    {"task": TASK, "student": {"model": "in/teacher"}, "method": {"name": "ft"}, "train": TRAIN},
]
TABLE_OF_A_PAPER = {
    "where": "t",
    "metrics": ["accuracy"],
    "set": {"train.epochs": 2},
    "rows": {"a": {"reported": [[1, 2]]}},
}
FAMILY: dict[str, Any] = {"base": KD, "tables": [TABLE_OF_A_PAPER]}
STUDY: dict[str, Any] = {
    "tasks": {"table": {"train.epochs": 2}},
    "task": {key: value for key, value in TASK.items() if key != "name"},
    "teacher": {"fine_tuned": "in/teacher", "cache": "off", "confirmed": True},
    "student": {"from": "teacher", "keep": "first:2"},
    "train": TRAIN,
    "methods": {"ft": {"method.name": "ft"}, "kd": {"grid": {"method.temperature": [1, 5]}, "method": {"alpha": 0.3}}},
    "seeds": [0, 1],
    "select_seeds": [0],
    "baselines": ["ft"],
    "variants": {"small": {"train.epochs": 1}},
}
HOW_MANY = st.sampled_from([0, 1, 1, 1, 1, 2, 2, 3])


def _places(tree: Any, where: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return every place in nested mappings and lists, as the keys that lead there."""
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [place for key, value in inside for place in ((*where, key), *_places(value, (*where, key)))]


@st.composite
def _broken_tree(draw: st.DrawFn, trees: list[dict[str, Any]]) -> dict[str, Any]:
    tree = copy.deepcopy(draw(st.sampled_from(trees)))
    for _ in range(draw(HOW_MANY)):
        places = _places(tree)
        if not places:
            break
        *parents, last = draw(st.sampled_from(places))
        holder: Any = tree
        for key in parents:
            holder = holder[key]
        kind = draw(st.sampled_from(["value", "value", "value", "delete", "rename", "move", "wrap"]))
        if kind == "value":
            holder[last] = copy.deepcopy(draw(st.sampled_from(VALUES)))
        elif kind == "wrap":
            holder[last] = draw(st.sampled_from([[holder[last]], {"x": holder[last]}, str(holder[last])]))
        elif kind == "move":
            tree[draw(st.sampled_from([*tree, "stages", "grid", "reported"]))] = copy.deepcopy(holder[last])
        elif isinstance(holder, dict):
            value = holder.pop(last)
            if kind == "rename":
                names = st.sampled_from([f"{last}s", str(last)[1:], "logging_dir", "deepspeed", "stage", 7, None, ""])
                holder[draw(names)] = value
        else:
            del holder[last]
    return tree


YAML_TAGS = ["!!python/object/apply:os.system ['true']", "!!python/name:os.system", "!x y", "!!binary '?'", "!!int x"]
YAML_TAGS += ["!!set {a, b}", "2024-13-45", "2024-01-01", "&a [*a]", "*nothing", LAUGHS, "[" * 3_000, "1:2:3", "<<: 1"]
YAML_TAGS += [
    "9" * 5_000,
    "{? [a] : b}",
    "{a: 1, a: 2}",
    "---\na: 1",
    "%TAG ! x",
    "'",
    "\t",
    "!!float x",
    "!!timestamp x",
]


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Draw a file as editors, copies and other programs leave it."""
    place = draw(st.integers(0, len(content)))
    lines = content.split(b"\n")
    line = draw(st.integers(0, len(lines) - 1))
    changes: list[Callable[[], bytes]] = [
        lambda: content.decode("utf-8", "replace").encode("utf-16"),
        lambda: b"\xef\xbb\xbf" + content,
        lambda: content[:place] + "é".encode("latin-1") + content[place:],
        lambda: content[:place] + b"\0" + content[place:],
        lambda: content[:place],
        lambda: content[:place] + b'"' + content[place:],
        lambda: content[:place] + b"," + content[place:],
        lambda: content.replace(b"\n", b"\r\n"),
        lambda: content.replace(b"\n", b"\r"),
        lambda: content + b"\n\n\n",
        lambda: b"\n".join([*lines[:line], lines[line], *lines[line:]]),
        lambda: b"\n".join([*lines[:line], *lines[line + 1 :]]),
        lambda: b"\n".join([*lines[:line], lines[line] * 2, *lines[line + 1 :]]),
        lambda: lines[0] + b"\n",
        lambda: b"",
        lambda: b"\n",
    ]
    return draw(st.sampled_from(changes))()


@st.composite
def recipe_files(draw: st.DrawFn, trees: list[dict[str, Any]]) -> bytes:
    """Draw a YAML file: its values broken, or a tag, an anchor or a word put in, or its bytes damaged."""
    text = yaml.safe_dump(draw(_broken_tree(trees)), sort_keys=False, allow_unicode=draw(st.booleans()))
    kind = draw(st.sampled_from(["plain", "plain", "plain", "tag", "bytes"]))
    if kind == "tag":
        lines = text.splitlines()
        line = draw(st.integers(0, len(lines) - 1)) if lines else 0
        key = lines[line].partition(":")[0] if lines else "seed"
        text = "\n".join([*lines[:line], f"{key}: {draw(st.sampled_from(YAML_TAGS))}", *lines[line + 1 :]])
    content = text.encode("utf-8", "surrogatepass")
    return draw(damaged(content)) if kind == "bytes" else content


TABLE = ["task.train=in/train.csv", "task.validation=in/dev.csv", "task.text=text", "task.label=label"]
TEACHER = ["--teacher", "in/teacher", "teacher.confirmed=true"]
STEP = ["train.max_steps=1", "train.save_strategy=no"]
COMMANDS: list[list[str]] = [
    ["validate", "in/recipe.yaml", "train.epochs=2", "seed=3"],
    ["validate", "fsd/rte", "teacher.model=x", "student.keep=first:2"],
    ["distill", "in/recipe.yaml", "-o", "out", *STEP],
    ["distill", "--method", "kd", "--task", "table", *TABLE, *TEACHER, "--keep", "first:2", *STEP],
    ["finetune", "table", "--model", "in/teacher", *TABLE, "--seed", "1", "--output", "out", *STEP],
    ["cache", "in/recipe.yaml", "-o", "out", "--dtype", "float16", "--batch-size", "4"],
    ["profile", "table", *TABLE, "--model", "in/teacher", "--max-length", "8"],
    ["predict", "in/teacher", "in/dev.csv", "--text", "text", "-o", "out/p.csv", "--batch-size", "4", "--force"],
    ["predict", "runs/a", "in/dev.csv", "-o", "p.jsonl", "--max-length", "8"],
    ["evaluate", "runs/a", "--split", "validation"],
    ["evaluate", "in/teacher", "--task", "table", *TABLE, "--batch-size", "4", "--submission", "out"],
    ["compare", "runs/a", "runs/b", "--test", "mcnemar", "--level", "0.1"],
    ["compare", "runs", "--baseline", "ft", "--metric", "accuracy", "-o", "out.md", "--details", "--no-holm"],
    ["compare", "studies/first", "--format", "csv"],
    ["report", "runs", "--no-analyze", "-o", "out/report.html"],
    ["analyze", "runs/half", "--no-cost", "--examples", "8", "--pool", "mean", "-o", "out", "--layer", "last"],
    ["study", "in/study.yaml", "--dry-run", "seeds=[0]"],
    ["study", "in/study.yaml/small", "--dry-run", "--workers", "1", "--threads", "1", "-o", "out"],
    ["glue", "runs/a", "runs/b"],
    ["methods", "kd"],
    ["tasks", "table"],
    ["recipes", "mrpc"],
    ["studies"],
    ["doctor"],
]
WORDS = [*TEXTS, "-", "--", "-o", "--seed", "--seed=x", "--task", "--help", "-q", "--quiet", "--resume", "--nothing"]
WORDS += ["-1", "99999999999999999999", "1e5", "inf", "\udcff", "=", "=1", "task=", "task.=1", ".=1", "task..name=1"]
WORDS += ["train=5", "task={}", "stages=[]", "stages.1.method.name=kd", "stages.0.x=1", "stages.9.x=1", "stages.²=1"]
WORDS += [
    "stages.².x=1",
    "a.b.c.d.e.f=1",
    "student=",
    "student.config={hidden_size: 7}",
    "student.config.vocab_size=-1",
]
WORDS += ["train.epochs=.nan", "train.epochs=-.inf", "train.learning_rate=1e999", "train.optim=x", "train.fsdp=x"]
WORDS += [
    "train.deepspeed=x.json",
    "train.report_to=x",
    "train.warmup_steps=-1",
    "train.eval_steps=0",
    "train.precision=double",
]
WORDS += ["train.lr_scheduler_type=x", "train.save_total_limit=-1", "train.hub_token=hf_x", "train.run_name=../x"]
WORDS += ["seed=2024-13-45", "seed=1e3", "seed=[", "seed=99999999999999999999999", "task.text=[text, text]"]
WORDS += ["task.max_length=1", "task.max_length=0", "task.label=text", "task.class_weights={positive: 2}", "method=kd"]
WORDS += [
    "task.problem=regression",
    "task.separator=''",
    "teacher.cache=in/teacher",
    "teacher.cache=out/cache",
    "grid={}",
]
WORDS += ["grid={method.alpha: [0, 5]}", "grid={a: 1}", "methods=[ft, kd]", "tasks=[glue/rte]", "methods.x.recipe=../x"]
WORDS += [
    "in/../runs/a",
    "out/../../../user/work/out",
    "in/train.csv",
    "in/teacher",
    "runs",
    "runs/a/student",
    "/proc/self/x",
]
WORDS += [f"{key}={tag}" for key in ("seed", "task", "method.name", "train.epochs") for tag in YAML_TAGS]
NOT_HERE = ("demo", "--ray", "--debug")  # which take minutes, start processes, or show tracebacks on purpose


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    words = list(draw(st.sampled_from(COMMANDS)))
    for _ in range(draw(HOW_MANY)):
        place = draw(st.integers(0, len(words) - 1)) if words else 0
        place = max(place, draw(st.integers(0, 1)))  # most of what follows the command's name
        place = min(place, max(0, len(words) - 1))
        kind = draw(st.sampled_from(["put", "put", "replace", "replace", "value", "delete", "twice", "swap"]))
        word = draw(st.sampled_from(WORDS))
        if kind == "put" or not words:
            words.insert(place + 1, word)
        elif kind == "replace":
            words[place] = word
        elif kind == "value":  # of an override
            words[place] = f"{words[place].partition('=')[0]}={word}"
        elif kind == "delete":
            del words[place]
        elif kind == "twice":
            words.insert(place, words[place])
        else:
            other = draw(st.integers(0, len(words) - 1))
            words[place], words[other] = words[other], words[place]
    return words
