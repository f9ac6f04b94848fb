"""Print the deployment file's JSON Schema: ``python -m inferway.deployment``."""

import json

from inferway.deployment import schema

if __name__ == "__main__":
    print(json.dumps(schema(), indent=0, ensure_ascii=False))
