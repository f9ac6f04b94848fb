"""Gain of all policies against the request rate ([SiSalem23], Fig. 9; [SiSalem21], Fig. 4)."""

from __future__ import annotations

from functools import partial

from inferway.experiments.curves import Drawing, panels
from inferway.experiments.results import largest, smallest
from inferway.studies import Claim, Results, Study, claim, scales
from inferway.studies.placement.trial import CODE, POLICIES, TUNED, Settings, every

_EDGE = "conference"
_READ = ("olag", "olag-literal", "greedy")
_ENDED = ("static-greedy", "static-greedy-served")
_COSTS = "largest share of its gain that sliding costs"


class _Gains:
    """NTAG, in ms, of a study's policies, under fixed and sliding popularity."""

    def __init__(self, settings: Settings, results: Results) -> None:
        self.rates, self.results = settings.rates_per_s, results
        self.low, self.high = self.rates[0], self.rates[-1]

    def ms(self, policy: str, rate: float, sliding: bool = False) -> float:
        """At a rate."""
        return self.results.value("ntag_ms", policy=policy, rate_per_s=rate, sliding=sliding)

    def over(self, policy: str, rate: float, sliding: bool = False) -> float:
        """INFIDA's over a policy's, less 1."""
        return self.ms("infida", rate, sliding) / self.ms(policy, rate, sliding) - 1

    def margins(self, policy: str) -> dict[tuple[str, float, bool], float]:
        """`over` at every rate under both popularities."""
        return {(policy, r, s): self.over(policy, r, s) for r in self.rates for s in (False, True)}

    def change(self, policy: str) -> float:
        """From the lowest rate to the highest, as a part of it."""
        return self.ms(policy, self.high) / self.ms(policy, self.low) - 1

    def lost(self, policy: str) -> float:
        """The largest share of a policy's gain that sliding costs."""
        return largest([1 - self.ms(policy, r, True) / self.ms(policy, r) for r in self.rates])

    def spread(self) -> float:
        """The spread of INFIDA's gain over its mean."""
        own = [self.ms("infida", r, s) for r in self.rates for s in (False, True)]
        return (max(own) - min(own)) / (sum(own) / len(own))

    def read(self, policies: tuple[str, ...], rate: float, sliding: bool = False) -> str:
        """INFIDA's at a rate, and that of other readings of a policy."""
        said = [
            f"{POLICIES[one].label}: {self.ms(one, rate, sliding):.2f} ms, INFIDA "
            f"{100 * self.over(one, rate, sliding):+.1f} %"
            for one in policies
        ]
        return f"at {rate:g}/s INFIDA {self.ms('infida', rate, sliding):.2f} ms; " + "; ".join(said)


def _figure(settings: Settings, results: Results) -> Drawing:
    labels = ("requests per second", "NTAG, ms")
    shown = [
        settings.panel(
            title,
            *labels,
            results.where(sliding=sliding),
            "ntag_ms",
            rate_per_s=settings.rates_per_s,
        )
        for title, sliding in (("fixed popularity", False), ("sliding popularity", True))
    ]
    where = "86 nodes" if settings.system == _EDGE else f"Topology {settings.system}"
    return panels(shown, columns=2, title=f"Gain against the request rate, {where}")


def _claims(settings: Settings, results: Results) -> list[Claim]:
    paper, of = partial(claim, "Sec. VI-C, Fig. 9"), _Gains(settings, results)
    rivals = ("infida-offline", "static-greedy", "olag")
    margins = {place: one for rival in rivals for place, one in of.margins(rival).items()}
    worst, at, sliding = min(margins, key=lambda one: margins[one])
    settled = [
        results.value("late_ms", policy="infida", rate_per_s=rate, sliding=False)
        / of.ms("infida-offline", rate)
        for rate in settings.rates_per_s
    ]
    return [
        paper(
            "Under fixed popularity INFIDA converges to the gain of INFIDA-offline.",
            "largest difference in the last quarter of the slots",
            largest([abs(one - 1) for one in settled]),
            "at most 1 %",
        ),
        paper(
            "That is about 10 % better than OLAG at 7,083 requests per second.",
            "INFIDA's gain over OLAG's, less 1",
            of.over("olag", of.low),
            "5 to 15 %",
            of.read(_READ, of.low),
        ),
        paper(
            "OLAG deteriorates as the rate grows to 10,000 requests per second.",
            "its gain there over that at the lowest rate, less 1",
            of.change("olag"),
            "at most -1 %",
            of.read(_READ, of.high),
        ),
        paper(
            "OLAG suffers visibly when popularity changes.",
            _COSTS,
            of.lost("olag"),
            "at least 2 %",
            "; ".join(f"{POLICIES[one].label}: {100 * of.lost(one):.1f} %" for one in _READ)
            + f"; INFIDA: {100 * of.lost('infida'):.1f} %",
        ),
        paper(
            "INFIDA-offline loses about 8 % under sliding popularity.",
            _COSTS,
            of.lost("infida-offline"),
            "4 to 12 %",
            f"{of.ms('infida-offline', of.low, True):.2f} ms against "
            f"{of.ms('infida-offline', of.low):.2f} ms at {of.low:g}/s: one static allocation has "
            "room for enough copies under all four popularities",
        ),
        paper(
            "Static greedy loses about 30 % under sliding popularity.",
            _COSTS,
            of.lost("static-greedy"),
            "20 to 40 %",
            "it goes on while anything gains; ending once all requests are served, it loses "
            f"{100 * of.lost('static-greedy-served'):.1f} % ({of.read(_ENDED, of.low, True)})",
        ),
        paper(
            "INFIDA always converges to the highest gain.",
            "least gain over INFIDA-offline, static greedy and OLAG, less 1",
            smallest(list(margins.values())),
            "at least 0 %",
            f"least against {POLICIES[worst].label} at {at:g}/s, popularity "
            f"{'sliding' if sliding else 'fixed'}; INFIDA's mean includes the slots in which it "
            "learns, and its draws, anew in each slot, spread the budgets",
        ),
        paper(
            "INFIDA keeps its gain whatever the rate and the popularity.",
            "spread of its gain over its mean",
            of.spread(),
            "at most 5 %",
        ),
    ]


def _edge_claims(settings: Settings, results: Results) -> list[Claim]:
    paper, of = partial(claim, "Sec. VI-B, Fig. 4"), _Gains(settings, results)
    greedy, olag = (smallest(list(of.margins(one).values())) for one in ("greedy", "olag"))
    return [
        paper(
            "At 5,000 requests per second greedy performs like INFIDA.",
            "INFIDA's gain over greedy's, less 1",
            of.over("greedy", of.low),
            "-5 to 5 %",
            "a node that does not count what it serves itself drops what serves well; counting "
            f"what reaches it: {100 * of.over('olag', of.low):+.1f} %",
        ),
        paper(
            "At 15,000 requests per second greedy's gain is about 33 % less.",
            "share of its gain lost",
            -of.change("greedy"),
            "23 to 43 %",
            f"{of.ms('greedy', of.low):.1f} ms at {of.low:g}/s, {of.ms('greedy', of.high):.1f} ms "
            f"at {of.high:g}/s: it drops models that serve well at any rate; counting what reaches "
            f"a node, {-100 * of.change('olag'):.1f} % are lost",
        ),
        paper(
            "INFIDA gains more than greedy in general.",
            "least gain over greedy's, less 1",
            greedy,
            "at least 0 %",
            f"least over greedy that counts what reaches a node: {100 * olag:+.1f} %",
        ),
        paper(
            "Greedy is visibly perturbed when popularity changes.",
            _COSTS,
            of.lost("greedy"),
            "at least 2 %",
            f"counting what reaches a node: {100 * of.lost('olag'):.1f} %; INFIDA: "
            f"{100 * of.lost('infida'):.1f} %",
        ),
        paper(
            "INFIDA keeps the same gain at all rates under both popularities.",
            "spread of its gain over its mean",
            of.spread(),
            "at most 5 %",
        ),
    ]


STUDY = Study(
    name="request-rate",
    source="[SiSalem23], Fig. 9",
    shows="How the gain holds as requests become more.",
    scales=scales(
        # The paper does not say the rates between its ends.
        Settings(
            sliding=(False, True),
            rates_per_s=(7083.0, 7500.0, 8333.0, 9167.0, 10_000.0),
            policies=("infida", "infida-coupled", "infida-offline", *_ENDED, *_READ),
        ),
        smoke={"slots": 12, "trials": 1, "rates_per_s": (7083.0, 10_000.0)},
        quick={"slots": 240, "trials": 3, "rates_per_s": (7083.0, 8333.0, 10_000.0)},
    ),
    points=every("system", "alpha", "sliding", "policy", "rate_per_s"),
    figure=_figure,
    claims=_claims,
    departures=(
        "Popularity slides every 27,000,000 requests, as in the paper: sooner at higher rates.",
        "OLAG's counters and static greedy's end can be read in several ways: all are run.",
        TUNED,
    ),
    code=CODE,
)
EDGE = Study(
    name="edge-rate",
    source="[SiSalem21], Fig. 4",
    shows="How the gain holds as requests become more, in a network of 86 nodes.",
    scales=scales(
        Settings(
            system=_EDGE,
            sliding=(False, True),
            rates_per_s=(5000.0, 7500.0, 10_000.0, 12_500.0, 15_000.0),
            policies=("infida", "infida-coupled", "greedy", "olag"),
            alpha=0.5,
            copies=5,
        ),
        smoke={"slots": 12, "trials": 1, "rates_per_s": (5000.0, 15_000.0)},
        quick={"slots": 240, "trials": 3, "rates_per_s": (5000.0, 10_000.0, 15_000.0)},
    ),
    points=every("system", "alpha", "sliding", "policy", "rate_per_s", given=("copies",)),
    figure=_figure,
    claims=_edge_claims,
    departures=("Budgets and single round-trip times are ours, as in edge-tiers.",),
    code=CODE,
)
