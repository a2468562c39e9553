"""Serve a classifier as people write it: FastAPI and a pipeline of transformers. MODEL names the folder."""

import os
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from transformers import pipeline

app = FastAPI()
classify = pipeline("text-classification", model=os.environ["MODEL"], top_k=None)


class Question(BaseModel):
    """Hold the text of a request."""

    inputs: str


@app.post("/predict")
def predict(question: Question) -> Any:
    """Answer one text."""
    return classify(question.inputs)
