"""Models in memory: found, fetched, checked, lent to sites and freed; all of them real."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import inferway
from inferway.catalog import zoo
from inferway.live.errors import LoadError
from inferway.live.node.models import LoadedModels
from inferway.live.store.allowed import Allowed
from inferway.live.store.store import ModelStore
from inferway.runtime import OnnxRuntime, inspect

TINY = ("digits", "tiny")
SIGNATURE = inspect(zoo.model_path("digits", "tiny"))
SERVICE = "service: {mean: 1 ms}"
OWN = "accuracy: 0.9, size: 1 MB, " + SERVICE
PLAIN = f"own: {{model: own.onnx, {OWN}}}"


class World:
    """A deployment of one task and the models of a node that serves it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = ModelStore(folder / "store", limit_bytes=10_000_000)

    def models(self, *variants: str, task: str = "digits", more: str = "") -> LoadedModels:
        lines = "".join(f"      {variant}\n" for variant in variants)
        (self.folder / "own.onnx").write_bytes(content_of())
        file = self.folder / "deployment.yaml"
        file.write_text(
            f"tasks:\n  {task}:\n    {more}\n    deadline: 300 ms\n    variants:\n{lines}"
        )
        return LoadedModels(inferway.load(file), self.store)

    def change(self, content: bytes) -> None:
        """Put another file in the place of one that was good when the deployment was read."""
        (self.folder / "own.onnx").write_bytes(content)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(60):
                await work
            self.store.close()

        asyncio.run(bounded())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def content_of(variant: str = "mini") -> bytes:
    return zoo.model_path("digits", variant).read_bytes()


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def renamed(content: bytes) -> bytes:
    """Make a good model whose output has another name."""
    model = onnx.load_model_from_string(content)
    old = model.graph.output[0].name
    model.graph.output[0].name = "other"
    for node in model.graph.node:
        node.output[:] = ["other" if name == old else name for name in node.output]
    return bytes(model.SerializeToString())


def unrunnable(content: bytes) -> bytes:
    """Make a model that is well formed and can be opened, but not run."""
    model = onnx.load_model_from_string(content)
    for weights in model.graph.initializer:
        if len(weights.dims) == 4:
            array = onnx.numpy_helper.to_array(weights)
            other = onnx.numpy_helper.from_array(np.repeat(array, 2, axis=1), weights.name)
            weights.CopyFrom(other)
            break
    return bytes(model.SerializeToString())


def test_what_is_lent_answers_as_the_model_does(world: World) -> None:
    models = world.models("tiny: {model: zoo://digits/tiny}")
    images = {SIGNATURE.inputs[0].name: zoo.testset().images[:32]}

    async def main() -> None:
        await models.load(*TINY)
        one, two = models.acquire(*TINY), models.acquire(*TINY)
        expected = OnnxRuntime(zoo.model_path("digits", "tiny")).run(images)
        for runtime in (one, two):
            assert runtime.signature == SIGNATURE
            (found,), (scores,) = runtime.run(images).values(), expected.values()
            assert np.array_equal(found, scores)
        one.close()
        one.close()
        with pytest.raises(RuntimeError, match="given back"):
            one.run(images)
        two.run(images)

    world.run(main())


def test_execution_providers_go_along(world: World) -> None:
    models = world.models(
        "tiny: {model: zoo://digits/tiny, providers: [AzureExecutionProvider]}",
        "far: {model: zoo://digits/tiny, providers: [CUDAExecutionProvider]}",
    )

    async def main() -> None:
        await models.load(*TINY)
        runtime = models.acquire(*TINY)
        runtime.run({SIGNATURE.inputs[0].name: zoo.testset().images[:2]})
        runtime.close()
        with pytest.raises(LoadError, match="the installed ONNX Runtime has no CUDAExecution"):
            await models.load("digits", "far")

    world.run(main())


def test_weights_go_when_the_last_loan_has_come_back(world: World) -> None:
    models = world.models("tiny: {model: zoo://digits/tiny}")

    async def main() -> None:
        freed = asyncio.Event()
        models.freed = freed.set
        await models.load(*TINY)
        one, two = models.acquire(*TINY), models.acquire(*TINY)
        assert not models.release(*TINY)
        one.close()
        await asyncio.sleep(0)
        assert TINY in models
        assert not freed.is_set()
        closing = threading.Thread(target=two.close)  # sites close in any thread
        closing.start()
        await freed.wait()
        closing.join()
        assert TINY not in models
        assert models.release(*TINY)
        with pytest.raises(LoadError, match="digits/tiny is not loaded"):
            models.acquire(*TINY)

    world.run(main())


def test_a_loan_that_is_forgotten_comes_back_by_itself(world: World) -> None:
    models = world.models("tiny: {model: zoo://digits/tiny}")

    async def main() -> None:
        await models.load(*TINY)
        loan = models.acquire(*TINY)
        assert not models.release(*TINY)
        del loan
        await asyncio.sleep(0)
        assert TINY not in models

    world.run(main())


def test_what_is_to_go_stays_when_it_is_loaded_again(world: World) -> None:
    models = world.models("tiny: {model: zoo://digits/tiny}")

    async def main() -> None:
        await models.load(*TINY)
        loan = models.acquire(*TINY)
        assert not models.release(*TINY)
        await models.load(*TINY)
        loan.close()
        await asyncio.sleep(0)
        assert TINY in models
        models.close()
        assert TINY not in models

    world.run(main())


def test_a_signature_is_known_before_anything_is_loaded(world: World) -> None:
    """From a zoo's file, from a file in the store, or not at all."""
    far = f"https://models.example.org/own.onnx, digest: '{digest_of(content_of())}'"
    remote = f"two: {{remote: 'http://127.0.0.1:9/v2/models/digits', {OWN}}}"

    async def main() -> None:
        near = world.models("tiny: {model: zoo://digits/tiny}")
        assert near.signature("digits") is None
        assert await near.learn("digits") == near.signature("digits") == SIGNATURE
        stored = world.models(f"own: {{model: {far}, {OWN}}}", remote)
        assert await stored.learn("digits") is None
        (world.folder / "mini").write_bytes(content_of())
        await world.store.fetch((world.folder / "mini").as_uri(), digest_of(content_of()))
        assert await stored.learn("digits") == SIGNATURE
        with pytest.raises(LoadError, match="no task 'letters'; there are digits"):
            await stored.learn("letters")

    world.run(main())


def test_a_broken_file_says_no_signature_and_others_do(world: World) -> None:
    models = world.models(PLAIN, "tiny: {model: zoo://digits/tiny}")
    world.change(b"no model")

    async def main() -> None:
        assert await models.learn("digits") == SIGNATURE

    world.run(main())


def test_identical_tasks_have_models_of_their_own(world: World) -> None:
    models = world.models("tiny: {model: zoo://digits/tiny}", more="count: 2")

    async def main() -> None:
        await models.load("digits-1", "tiny")
        assert ("digits-1", "tiny") in models
        assert ("digits-0", "tiny") not in models
        with pytest.raises(LoadError, match="digits-2/tiny: there is no task 'digits-2'"):
            await models.load("digits-2", "tiny")

    world.run(main())


def test_a_plain_file_comes_through_the_store_and_is_hashed_once(world: World) -> None:
    models = world.models(PLAIN)

    async def main() -> None:
        await models.load("digits", "own")
        (stored,) = world.store.contents()
        assert (stored.digest, stored.uses) == (digest_of(content_of()), 0)
        assert models.release("digits", "own")
        # Were it hashed again, the other file would do.
        world.change(content_of("small"))
        await models.load("digits", "own")
        assert models.release("digits", "own")
        # What was thrown out of the store is sought at its source, where another is by now.
        world.store.discard(stored.digest)
        with pytest.raises(LoadError, match=r"digits/own: file:///\S+ is not the model"):
            await models.load("digits", "own")
        await models.load("digits", "own")
        assert [one.digest for one in world.store.contents()] == [digest_of(content_of("small"))]

    world.run(main())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no model", "own.onnx: not a whole ONNX model: the file is damaged"),
        (content_of()[:-100], "own.onnx: not a whole ONNX model"),
        (renamed(content_of()), r"its signature .*other: FP32.* differs from .* of tiny"),
        (unrunnable(content_of()), "failed its warm-up: .* Input channels C is not equal"),
    ],
    ids=["other", "cut", "signature", "unrunnable"],
)
def test_a_model_that_cannot_be_loaded_is_told_in_one_sentence(
    world: World, content: bytes, reason: str
) -> None:
    models = world.models("tiny: {model: zoo://digits/tiny}", PLAIN)
    world.change(content)

    async def main() -> None:
        await models.load(*TINY)
        with pytest.raises(LoadError, match=f"digits/own: .*{reason}") as caught:
            await models.load("digits", "own")
        assert "\n" not in str(caught.value)
        assert digest_of(content)[7:] not in str(caught.value)
        assert ("digits", "own") not in models
        assert all(one.uses == 0 for one in world.store.contents())

    world.run(main())


def test_a_missing_file_and_a_wrong_digest_are_told(world: World) -> None:
    stated = f"stated: {{model: own.onnx, digest: '{digest_of(content_of())}', {OWN}}}"
    models = world.models(stated, PLAIN)
    other = content_of("small")
    world.change(other)

    async def main() -> None:
        with pytest.raises(LoadError, match=f"stated: .* its digest is {digest_of(other)}, exp"):
            await models.load("digits", "stated")
        (world.folder / "own.onnx").unlink()
        with pytest.raises(LoadError, match=r"digits/own: own.onnx cannot be read: No such file"):
            await models.load("digits", "own")
        assert world.store.used_bytes == 0

    world.run(main())


def test_a_source_that_is_not_allowed_is_told(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def main() -> None:
        world.store.close()
        world.store = ModelStore(
            tmp_path / "store", limit_bytes=1_000_000, allowed=Allowed(schemes=("https",))
        )
        models = world.models(PLAIN)
        with pytest.raises(LoadError, match="digits/own: models come by https here"):
            await models.load("digits", "own")

    world.run(main())


def test_a_file_that_was_damaged_in_the_store_is_brought_anew(world: World) -> None:
    models = world.models(PLAIN)

    async def main() -> None:
        await models.prepare("digits", "own")
        (stored,) = world.store.contents()
        stored.path.write_bytes(b"damaged")
        with pytest.raises(LoadError, match=r"digits/own: own.onnx: the model file's digest is"):
            await models.load("digits", "own")
        await models.load("digits", "own")

    world.run(main())


def test_what_is_prepared_stays_in_the_store_until_it_is_loaded(world: World) -> None:
    models = world.models(PLAIN)

    def uses() -> int:
        (stored,) = world.store.contents()
        return stored.uses

    async def main() -> None:
        await models.prepare("digits", "own")
        assert models.is_ready("digits", "own")
        assert uses() == 1
        models.forget("digits", "own")
        assert not models.is_ready("digits", "own")
        assert uses() == 0
        await models.prepare("digits", "own")
        await models.load("digits", "own")
        assert uses() == 0
        models.close()

    world.run(main())


def test_what_is_prepared_is_checked(world: World) -> None:
    models = world.models(PLAIN)
    world.change(content_of()[:-100])

    async def main() -> None:
        with pytest.raises(LoadError, match=r"digits/own: own.onnx: not a whole ONNX model"):
            await models.prepare("digits", "own")
        (stored,) = world.store.contents()
        assert stored.uses == 0
        assert not models.is_ready("digits", "own")

    world.run(main())


def test_a_variant_without_a_model_is_told(world: World) -> None:
    models = world.models(f"own: {{{OWN}}}")

    async def main() -> None:
        for work in (models.prepare, models.load):
            with pytest.raises(LoadError, match="digits/own: it has no `model`"):
                await work("digits", "own")

    world.run(main())


@pytest.mark.parametrize("after", range(0, 12, 2))
def test_a_load_that_is_canceled_leaves_nothing(world: World, after: int) -> None:
    models = world.models(PLAIN)
    world.change(content_of("large"))

    async def main() -> None:
        loading = asyncio.create_task(models.load("digits", "own"))
        for _ in range(after):
            await asyncio.wait({loading}, timeout=0.002)
        loading.cancel()
        await asyncio.wait({loading})
        if loading.cancelled():
            assert ("digits", "own") not in models
            assert all(one.uses == 0 for one in world.store.contents())
        await models.load("digits", "own")
        assert ("digits", "own") in models
        for thread in threading.enumerate():
            if thread.name == "aside":  # it has told, and is about to end
                thread.join(20)
                assert not thread.is_alive()

    world.run(main())


def silent_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_a_remote_server_that_is_down_may_be_back(world: World) -> None:
    url = f"http://127.0.0.1:{silent_port()}/v2/models/digits"
    remote = f"far: {{remote: '{url}', {OWN}}}"

    async def main() -> None:
        known = world.models("tiny: {model: zoo://digits/tiny}", remote)
        for work in (known.prepare, known.load):
            await work("digits", "far")
        runtime = known.acquire("digits", "far")
        assert runtime.signature == SIGNATURE
        runtime.close()
        assert known.release("digits", "far")
        alone = world.models(remote)
        with pytest.raises(LoadError, match="nothing else says what the task takes and gives"):
            await alone.load("digits", "far")

    world.run(main())


def test_a_batch_that_a_model_cannot_take_is_found_before_anybody_asks(world: World) -> None:
    batch = "batch: {sizes: [1, 2], service: [1 ms, 2 ms]}"
    model = onnx.load_model_from_string(content_of())
    name = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = ["inner" if one == name else one for one in node.output]
    model.graph.node.append(onnx.helper.make_node("Reshape", ["inner", "one_row"], [name]))
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(np.array([1, 10], np.int64), "one_row")
    )
    models = world.models(f"own: {{model: own.onnx, {OWN.replace(SERVICE, batch)}}}")
    world.change(model.SerializeToString())

    async def main() -> None:
        with pytest.raises(LoadError, match="digits/own: cannot serve batches of 2"):
            await models.load("digits", "own")

    world.run(main())
