"""Print the inference listener's OpenAPI document: ``python -m inferway.live.http``."""

from __future__ import annotations

import msgspec

from inferway.live.http.routes import document

print(msgspec.json.format(msgspec.json.encode(document()), indent=1).decode())
