"""SlottedSites as environments of Gymnasium and Stable-Baselines3."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env  # noqa: E402

from inferway.deployment.workloads import PoissonArrivals  # noqa: E402
from inferway.learning import registration  # noqa: E402
from inferway.learning.control import Control  # noqa: E402
from inferway.learning.deployed import setting  # noqa: E402
from inferway.learning.environment import (  # noqa: E402
    ActionReader,
    EdgeSites,
    edge_site,
    edge_sites,
)
from inferway.learning.registration import ID  # noqa: E402
from inferway.learning.site import SlottedSites  # noqa: E402

BURST = Path(__file__).parents[3] / "examples" / "edge-burst.yaml"
BATCHED = """
tasks:
  recognise:
    deadline: 300 ms
    variants:
      light:
        accuracy: 0.7
        service: {mean: 10 ms}
        batch: {sizes: [1, 3, 5], service: [10 ms, 20 ms, 30 ms]}
      heavy: {accuracy: 0.8, service: {mean: 40 ms}}
nodes:
  edge: {instances: {recognise/light: 1, recognise/heavy: 2}, buffer: 15}
workload:
  recognise: {arrivals: {process: poisson, rate: 60/s}}
"""


@pytest.fixture
def batched(tmp_path: Path) -> Path:
    file = tmp_path / "batched.yaml"
    file.write_text(BATCHED)
    return file


@pytest.fixture
def actions() -> np.ndarray:
    """(T, 5, 4) for five sites."""
    return np.random.default_rng(1).random((40, 5, 4), np.float32)


def test_gymnasium_finds_nothing_amiss(batched: Path) -> None:
    check_env(gymnasium.make(ID).unwrapped)
    options = {"file": batched, "batching": True, "observability": "fo"}
    check_env(gymnasium.make(ID, **options).unwrapped)


def test_without_a_file_it_is_the_paper_s_site() -> None:
    bare, written = setting(), setting(BURST)
    for field in fields(Control):
        if field.name != "scenario":
            assert getattr(bare, field.name) == getattr(written, field.name)
    one, other = bare.scenario, written.scenario
    assert one.arrivals == other.arrivals
    assert one.service == other.service
    assert (one.deadline_s, one.late) == (other.deadline_s, other.late) == (0.3, "serve")
    assert one.fleet.buffer == other.fleet.buffer == 15
    for name in ("variants", "rate", "accuracy", "count"):
        assert list(getattr(one.fleet, name)) == list(getattr(other.fleet, name))
    assert edge_site().observation_space.shape == (132,)
    assert edge_site(observability="fo").observation_space.shape == (134,)


def test_a_step_is_that_of_sites(actions: np.ndarray) -> None:
    calm = setting(alpha=0.5, gains=(0.6, 0.9))
    steady = PoissonArrivals.read({"process": "poisson", "rate": "150/s"})
    control = replace(calm, scenario=replace(calm.scenario, arrivals=steady))
    env, envs = edge_site(control=control), edge_sites(5, control=control)
    alone, sites = (SlottedSites(control, count=count, seed=7) for count in (1, 5))
    seen, _ = env.reset(seed=7)
    many, _ = envs.reset(seed=7)
    assert seen.tolist() == alone.observation[0].tolist()
    assert many.tolist() == sites.observation.tolist()
    told = []
    for action in actions:
        weights = action.astype(np.float64)
        alone.step(weights[:1])
        seen, reward, terminated, truncated, info = env.step(action[0])
        assert (seen.tolist(), reward) == (alone.observation[0].tolist(), alone.rewards[0])
        assert (terminated, truncated) == (False, False)
        sites.step(weights)
        many, rewards, _, _, infos = envs.step(action)
        assert many.tolist() == sites.observation.tolist()
        assert rewards.tolist() == sites.rewards.tolist()
        told.append([info["arrived"], info["rejected"], info["late"], info["goodput"]])
        assert [infos[name][0] for name in info] == pytest.approx(list(info.values()))
        assert infos["_late"].all()
    counts = alone.counts
    timely, late = counts.answered.sum(axis=(0, 1)).T
    every = [counts.arrived.sum(), counts.rejected.sum(), late.sum(), timely @ [0.7769, 0.8278]]
    assert np.sum(told, axis=0) == pytest.approx(every)
    assert min(every) > 100


def test_what_it_gave_stays_as_it_was(actions: np.ndarray) -> None:
    env, envs = edge_site(), edge_sites(5)
    given = [env.reset(seed=1)[0], envs.reset(seed=1)[0]]
    given += [env.step(actions[0, 0])[0], *envs.step(actions[0])[:2]]
    before = [array.tolist() for array in given]
    env.step(actions[1, 0])
    envs.step(actions[1])
    assert [array.tolist() for array in given] == before


def test_seeds() -> None:
    def course(env: Any) -> list[list[float]]:
        action = np.full(env.action_space.shape, 0.5, np.float32)
        return [env.step(action)[0].tolist() for _ in range(10)]

    for env in (edge_site(), edge_sites(2)):
        found = []
        for seed in (3, None, 3, None, 4):
            env.reset(seed=seed)
            found.append(course(env))
        assert found[:2] == found[2:4]
        assert found[0] != found[1] != found[4] != found[0]


def test_the_next_episode_begins_with_the_next_step(actions: np.ndarray) -> None:
    envs = gymnasium.make_vec(ID, num_envs=5, max_episode_steps=3)
    assert isinstance(envs, EdgeSites)
    assert envs.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.NEXT_STEP
    envs.reset(seed=2)
    ends = []
    for t in range(8):
        seen, rewards, terminated, truncated, _ = envs.step(actions[t])
        ends.append(truncated.tolist())
        assert not terminated.any()
        if t == 3:
            assert rewards.tolist() == [0.0] * 5
            assert seen[:, ::33].tolist() == [[1.0] * 4] * 5  # nobody is there
            assert envs.sites.clock_s.tolist() == [0.0] * 5
    assert ends == [[t in (2, 6)] * 5 for t in range(8)]


def test_or_with_the_last(actions: np.ndarray) -> None:
    envs = edge_sites(5, max_episode_steps=3, autoreset_mode="SameStep")
    assert envs.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.SAME_STEP
    sites = SlottedSites(setting(), count=5, seed=2)
    envs.reset(seed=2)
    for t in range(3):
        seen, rewards, _, truncated, info = envs.step(actions[t])
        sites.step(actions[t].astype(np.float64))
    assert truncated.all()
    assert rewards.tolist() == sites.rewards.tolist()
    assert np.stack(info["final_obs"]).tolist() == sites.observation.tolist()
    assert info["final_info"]["arrived"].tolist() == sites.arrivals.tolist()
    assert seen[:, ::33].tolist() == [[1.0] * 4] * 5
    assert "final_obs" not in envs.step(actions[3])[-1]


def test_gymnasium_vectorizes_it_as_well(actions: np.ndarray) -> None:
    envs = gymnasium.make_vec(ID, num_envs=2, vectorization_mode="sync", max_episode_steps=3)
    envs.reset(seed=1)
    for t in range(3):
        *_, truncated, info = envs.step(actions[t, :2])
    assert truncated.all()
    assert info["arrived"].shape == (2,)


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ([1, 1, 0, 0], [0.5, 0.5, 0, 0]),
        ([0.1, 0.3, 0, 0], [0.25, 0.75, 0, 0]),
        ([0, 0, 0, 0], [0.25] * 4),
        ([-1, -1, 0, 0.5], [0, 0, 0, 1]),
    ],
)
def test_weights_are_shares(weights: list[float], shares: list[float]) -> None:
    read, rules = ActionReader(setting()).read(np.array([weights], np.float32))
    assert (read / read.sum()).ravel() == pytest.approx(shares)
    assert rules is None


def test_numbers_pick_batch_sizes(batched: Path) -> None:
    decisions = ActionReader(setting(batched, batching=True))
    picks = [[0, 0, 0.5, 0.9], [0.34, 1, 0, 0], [0.9, 0.1, 1, 1], [1, 0.5, -1, 2]]
    _, rules = decisions.read(np.array([[1, 1, 1, *row] for row in picks]))
    assert rules is not None
    assert rules[:, 0].tolist() == [[1, 1], [3, 5], [5, 5], [5, 5]]
    assert rules[:, 1].tolist() == [[1, 1]] * 4


def test_what_is_no_action_is_refused() -> None:
    env = edge_site()
    env.reset(seed=1)
    with pytest.raises(ValueError, match="has 4 numbers, one per server, not"):
        env.step(np.ones(5, np.float32))
    for wrong in (np.nan, np.inf):
        with pytest.raises(ValueError, match="nan or infinite"):
            env.step(np.array([wrong, 1, 1, 1], np.float32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"observability": "full"}, "po or fo, not 'full'"),
        ({"node": "edge"}, "give the file"),
        ({"batching": True}, "prints no service times of batches"),
        ({"gains": (0.5,)}, "2 accuracies"),
        ({"file": BURST, "task": "speech"}, "unknown task 'speech'"),
        ({"file": BURST, "batching": True}, "no variant has a `batch`"),
        ({"slot_s": -1.0}, "longer than 0 s"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        edge_site(**options)
    with pytest.raises(ValueError, match=message):
        edge_sites(2, **options)


def test_lockstep_is_not_without_autoreset() -> None:
    with pytest.raises(ValueError, match="begin anew together"):
        edge_sites(2, autoreset_mode="Disabled")
    with pytest.raises(ValueError, match="one slot or more"):
        edge_sites(2, max_episode_steps=0)


@pytest.mark.parametrize("module", ["environment", "stable_baselines"])
def test_without_gymnasium_it_says_what_to_install(module: str) -> None:
    code = f"import sys; sys.modules['gymnasium'] = None; import inferway.learning.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: environments need gymnasium, which is in the extra `learn`: "
        "pip install 'inferway[learn]' "
        "--extra-index-url https://download.pytorch.org/whl/cpu (without CUDA)"
    )


@pytest.mark.parametrize(
    "code",
    [
        "import gymnasium, inferway; gymnasium.make(ID)",
        "import inferway, gymnasium, inferway.learning.environment; gymnasium.make(ID)",
        "import gymnasium; gymnasium.make('inferway.learning.environment:' + ID)",
        "import gymnasium, inferway; gymnasium.make_vec(ID, num_envs=3)",
    ],
)
def test_it_is_made_by_its_name(code: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", f"ID = {ID!r}; {code}"], check=True)


def test_a_second_process_compiles_nothing() -> None:
    code = (
        "import sys, inferway.learning.environment as environment\n"
        "from inferway.site.compiled import watched\n"
        "with watched(done=lambda compilation: print(compilation.function)):\n"
        "    environment.edge_site()\n"
    )
    for _ in range(2):
        run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert run.stdout == b""


def test_it_registers_once() -> None:
    spec = gymnasium.registry[ID]
    code = registration.__spec__.loader.get_code(registration.__name__)  # type: ignore[union-attr]
    exec(code, {**vars(registration)})
    assert gymnasium.registry[ID] is spec


def test_stable_baselines_sees_returns_and_last_observations(actions: np.ndarray) -> None:
    pytest.importorskip("stable_baselines3")
    from inferway.learning.stable_baselines import baseline_sites

    envs = baseline_sites(5, max_episode_steps=4)
    envs.seed(3)
    first = envs.reset()
    sites = SlottedSites(setting(), count=5, seed=3)
    assert first.tolist() == sites.observation.tolist()
    total = np.zeros(5)
    for t in range(4):
        seen, rewards, ended, infos = envs.step(actions[t])
        total += sites.step(actions[t].astype(np.float64))
        assert rewards.tolist() == sites.rewards.astype(np.float32).tolist()
        assert ended.tolist() == [t == 3] * 5
    assert seen[:, ::33].tolist() == [[1.0] * 4] * 5
    for e, info in enumerate(infos):
        assert info["terminal_observation"].tolist() == sites.observation[e].tolist()
        assert info["TimeLimit.truncated"]
        assert info["episode"] == {"r": pytest.approx(total[e]), "l": 4}
    total[:] = 0.0
    for t in range(4):
        _, rewards, _, infos = envs.step(actions[t])
        total += rewards
        assert (infos == [{}] * 5) == (t < 3)
    found = [info["episode"] for info in infos]
    assert found == [{"r": pytest.approx(one, rel=1e-5), "l": 4} for one in total]
    assert envs.get_attr("num_envs", [0, 1]) == [5, 5]
    assert envs.env_is_wrapped(gymnasium.Wrapper) == [False] * 5


@pytest.mark.slow
def test_stable_baselines_learns() -> None:
    """Where heavy servers are worth nothing, light ones must be chosen."""
    baselines = pytest.importorskip("stable_baselines3")
    from inferway.learning.stable_baselines import baseline_sites

    envs = baseline_sites(64, gains=(0.9, 0.0), max_episode_steps=100)
    model = baselines.PPO("MlpPolicy", envs, n_steps=64, batch_size=1024, seed=1, device="cpu")

    def light() -> float:
        envs.seed(5)
        action, _ = model.predict(envs.reset(), deterministic=True)
        weights, _ = ActionReader(setting()).read(action)
        return float((weights[:, :2].sum(axis=1) / weights.sum(axis=1)).mean())

    before = light()
    model.learn(8 * 64 * 64)
    assert light() > before + 0.1


def test_a_site_of_one_s_own() -> None:
    control = replace(setting(), slot_s=0.5)
    env = edge_site(control=control)
    env.reset(seed=1)
    env.step(np.ones(4, np.float32))
    assert env.sites.clock_s[0] == 0.5
