"""Score an exported model by accuracy as anybody would, where limbeck cannot be imported.

python without_limbeck.py FOLDER EXAMPLES.json: prints the accuracy on rows of texts and a label's name.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path


class NoLimbeck:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "limbeck":
            raise ModuleNotFoundError(f"{name} is blocked")


def main(folder: str, examples: str) -> None:
    sys.meta_path.insert(0, NoLimbeck())
    try:
        importlib.util.find_spec("limbeck")
    except ModuleNotFoundError:
        pass
    else:
        raise SystemExit("limbeck can be imported")
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    tokenizer, config = AutoTokenizer.from_pretrained(folder), AutoConfig.from_pretrained(folder)
    *texts, labels = map(list, zip(*json.loads(Path(examples).read_text()), strict=True))
    onnx = next(Path(folder).glob("onnx/*.onnx"), None)
    if onnx is not None:
        import onnxruntime

        session = onnxruntime.InferenceSession(onnx)
    else:
        model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    right = 0
    for first in range(0, len(labels), 32):
        some = [column[first : first + 32] for column in texts]
        batch = tokenizer(*some, padding=True, truncation=True, return_tensors="np" if onnx is not None else "pt")
        if onnx is not None:
            logits = session.run(None, {node.name: batch[node.name] for node in session.get_inputs()})[0]
        else:
            logits = model(**batch).logits.detach().numpy()
        answers = [config.id2label[index] for index in logits.argmax(-1).tolist()]
        right += sum(map(str.__eq__, answers, labels[first : first + 32]))
    assert not any(name.partition(".")[0] == "limbeck" for name in sys.modules)
    print(right / len(labels))


if __name__ == "__main__":
    main(*sys.argv[1:])
