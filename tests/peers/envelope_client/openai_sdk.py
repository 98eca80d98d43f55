"""``python openai_sdk.py ADDRESS MODEL``: run every scenario with OpenAI's Python SDK.

Each printed line is JSON, ``[name, outcome]``; an outcome is ``{"ok": value}`` or
``{"error": [class, status, code]}``.
"""

import json
import sys

import openai

TEXTS = ["a red house", "A red houes", "two ships"]


class Scenarios:
    def __init__(self, address, model):
        self.client = openai.OpenAI(base_url=f"http://{address}/v1", api_key="k", max_retries=0)
        self.model = model

    def embed(self, texts, model=None, **options):
        response = self.client.embeddings.create(input=texts, model=model or self.model, **options)
        vectors = [[round(number, 5) for number in item.embedding] for item in response.data]
        return [vectors, [item.index for item in response.data], response.usage.total_tokens]

    def default_encoding(self):  # the SDK requests base64 and decodes it
        return self.embed(TEXTS)

    def floats(self):
        return self.embed(TEXTS, encoding_format="float")

    def one_text(self):
        return self.embed(TEXTS[0], user="someone")

    def many_texts(self):
        return len(self.embed(TEXTS * 21)[0])

    def an_unknown_model(self):
        return self.embed(TEXTS, "nosuch")

    def dimensions(self):
        return self.embed(TEXTS, dimensions=3)

    def tokens(self):
        return self.embed([[1, 2], [3, 4]])

    def too_many_texts(self):
        return self.embed(TEXTS * 30)


def outcome(scenario):
    try:
        return {"ok": scenario()}
    except openai.APIStatusError as error:
        return {"error": [type(error).__name__, error.status_code, error.code]}


scenarios = Scenarios(*sys.argv[1:])
for name in vars(Scenarios):
    if not name.startswith("_") and name != "embed":
        print(json.dumps([name, outcome(getattr(scenarios, name))]))  # noqa: T201
