"""Print the inference listener's OpenAPI document: ``python -m inferway.live.http``."""

from __future__ import annotations

import json

import msgspec

from inferway.live.http.routes import document

# A line for each value, and no spaces before it: the document is for programs.
told = json.loads(msgspec.json.encode(document()))
print(json.dumps(told, indent=0, ensure_ascii=False))
