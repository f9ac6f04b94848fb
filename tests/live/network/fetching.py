"""A node that fetches its best variant by https, from a server beside it that a test governs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

sys.path.insert(0, str(Path(__file__).parents[1] / "node"))

from model_server import ModelServer, digest_of, make_certificate, whole
from ring import Ring

from inferway.catalog import model_path, profiles

_HUGE: Final = "huge: {model: zoo://digits/huge}"
_FETCHED: Final = (
    "huge: {{model: {url}, digest: {digest}, accuracy: {accuracy!r}, size: {size} B, "
    "service: {{mean: {mean_ms!r} ms}}}}"
)
_STORE: Final = "store: {hosts: [127.0.0.1], loopback: true, limit: 20 MB}"


class Fetching:
    """Serves `huge` to one node, inside its namespace, and has that node fetch it from there.

    Parameters
    ----------
    ring
        The nodes.
    node
        Which; it does not run now.
    folder
        For its deployment file and the certificate.
    """

    def __init__(self, ring: Ring, node: str, folder: Path) -> None:
        self.content = model_path("digits", "huge").read_bytes()
        certificate = make_certificate(folder / "server.pem", "127.0.0.1")
        self._server = ring.network.within(node, lambda: ModelServer(certificate))
        profile = profiles("digits")["huge"]
        service = ring.deployment.tasks["digits"].variants["huge"].service_on("cpu")
        fetched = _FETCHED.format(
            url=self._server.url(),
            digest=digest_of(self.content),
            accuracy=profile.accuracy,
            size=len(self.content),
            mean_ms=1e3 * service.mean_s,
        )
        text = ring.file.read_text(encoding="utf-8").replace(_HUGE, fetched)
        usual = f"{node}:  {{budget: 1.2 MB}}"
        assert usual in text
        text = text.replace(usual, f"{node}: {{budget: 1.2 MB, {_STORE}}}")
        file = folder / "fetching.yaml"
        file.write_text(text, encoding="utf-8")
        ring.otherwise(node, before=("env", f"SSL_CERT_FILE={certificate}"), file=file)

    def serve(self, content: bytes) -> None:
        """Give these bytes from now on."""
        self._server.replies["/model"] = whole(content)

    @property
    def asked(self) -> int:
        """How often the node has asked."""
        return len(self._server.asked)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
