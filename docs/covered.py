"""Every item of the four papers, and the study, test or code that covers it.

    python docs/covered.py > docs/studies/coverage.md

writes the page. A test holds that the page is what this prints and that all it refers to exists.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from inferway.studies.table import study

COVERED, DIFFERENT, ABSENT = "covered", "different", "not there"

# By paper. An item is a line `NAME | WHAT IT SAYS | STATE`. Below it stand what covers it, each
# after `- `: a study by its name, a test as FILE::NAME below tests/, code as MODULE:NAME; and after
# `= ` why it is not just covered, beginning with the place that says so, in round brackets, where
# that is not the first study's.
TEXT: Final[Mapping[str, str]] = {
    "SiSalem23": """
Fig. 1 | Compute nodes along paths to a repository. | covered
- inferway.network.topology:tree
- unit/network/test_deployed.py::test_the_papers_first_topology
Fig. 2 | A catalog of pre-trained models: accuracy against size and speed. | different
- catalog
= drawn of Table II and of timm's results: the figure's numbers are in another work
Fig. 3 | Cheaper models may lie upstream, so that nodes must tell each other. | covered
- upstream
- theory/test_placement_distributed.py::test_offers_lead_a_request_to_the_cheapest_running_instance
Fig. 4 | Fixed and sliding popularity of the tasks. | covered
- popularity
- unit/workload/test_popularity.py::test_the_papers_profile
Fig. 5 | Fractional allocations by tier at alpha 3, 4 and 5. | different
- placement-tiers
= at alpha 5 small models stay worth their memory, so that their sentence fails
Fig. 6 | Latency and inaccuracy against alpha. | covered
- placement-alpha
Fig. 7 | Gain of all policies against alpha, on both topologies. | different
- placement-gain
= static policies lose nothing where one allocation serves all popularities, and OLAG in its
  strong reading is ahead in places
Fig. 8 | Bytes moved and gain by refresh period, constant and stretched. | covered
- refresh-period
- unit/placement/test_refresh.py::test_a_period_that_stretches_from_1_to_32_over_an_hour
Fig. 9 | Gain against the request rate. | different
- request-rate
= alpha 1 leaves room, so that the differences reported are smaller
Fig. 10 | Latency against inaccuracy of all policies. | covered
- latency-inaccuracy
Table I | Notation. | covered
- inferway.network.delivery:DeliveryNetwork
- inferway.placement.layout:Layout
Table II | Ten YOLOv4 variants on two GPUs. | covered
- inferway.catalog.published:table
- unit/network/test_deployed.py::test_capacity_is_frames_per_second_times_the_slot
Algorithm 1 | INFIDA: subgradient, mirror step, projection, rounding. | covered
- inferway.placement.infida:Infida
- theory/test_placement_infida.py::test_useless_models_share_one_number_exactly
Algorithm 2 | Bregman projection onto the weighted capped simplex. | covered
- inferway.placement.rounding:project_sorted
- theory/test_placement_projection.py::test_both_are_the_bregman_projection
Eq. 5 and 6 | Any cost of path and model; latency plus alpha times inaccuracy. | covered
- inferway.network.options:latency_and_inaccuracy
- unit/network/test_delivery.py::test_any_cost_function
Eq. 7 | Potential available capacity. | covered
- inferway.placement.objective:potential
- theory/test_placement_gain.py::test_capacities_costs_and_gains_are_the_papers
Eq. 12 | Aggregate cost of a slot by the serving rule. | covered
- theory/test_placement_gain.py::test_the_loads_cost_what_eq_12_says
Eq. 20 | psi-regret against the best static allocation in hindsight. | covered
- regret
- inferway.placement.exact:best_static
Eq. 23 and 24 | Time-averaged normalized gain (NTAG) and model updates (MU). | covered
- inferway.twin.result:NetworkResult
- placement-gain
- refresh-period
Sec. III-E | Messages downstream of what is served cheaper upstream, pruned on the way. |
  covered
- inferway.network.offers:prune
- unit/dispatch/test_offers.py::test_offers_that_are_beaten_are_left_out
Sec. IV-B, eq. 19 | The subgradient from messages up and down the paths. | covered
- inferway.placement.agent:Agent
- theory/test_placement_distributed.py::test_on_random_networks_too
Sec. IV-B | INFIDA is robust to unbiased noise in the subgradient. | covered
- theory/test_placement_lemmas.py::test_unbiased_noise_in_the_subgradients_costs_little
- theory/test_placement_distributed.py::test_losses_cost_little_until_they_are_many
Sec. IV-C | DepRound, with elastic or strict budgets. | covered
- inferway.placement.rounding:dep_round
- theory/test_placement_rounding.py::test_budgets_hold
- theory/test_placement_rounding.py::test_a_strict_budget_is_filled_by_value
Sec. VI, static greedy | Cost-benefit greedy in hindsight. | different
- inferway.placement.static:StaticGreedy
- placement-gain
- unit/placement/test_greedy.py::test_static_greedy_may_stop_once_all_is_served
= both readings of where it stops are run
Sec. VI, OLAG | Online load-aware greedy. | different
- inferway.placement.counters:Olag
- inferway.placement.counters:OlagLiteral
- placement-gain
= the strong reading and the letter are run
Sec. VI, INFIDA-offline | One static allocation from INFIDA's average. | covered
- inferway.placement.static:InfidaOffline
- placement-gain
Sec. VI-B | A dynamic refresh period, B from B_init to B_target. | covered
- refresh-period
- inferway.placement.infida:Refresh
- unit/placement/test_refresh.py::test_a_file_may_say_dynamic_and_strict
Lemma III.1 | The gain as savings times additional requests (eq. 16). | covered
- theory/test_placement_gain.py::test_capacities_costs_and_gains_are_the_papers
Lemma A.1 | The gain of a slot is normalized, submodular and monotone. | covered
- theory/test_placement_gain.py::test_gain_is_monotone_and_submodular
Lemma A.2 | So is the time-averaged gain. | covered
- theory/test_placement_gain.py::test_gain_is_monotone_and_submodular
Theorem B.1 | Maximizing the static gain is NP-hard: similarity caching, as an instance. | covered
- theory/test_placement_hardness.py::test_the_best_allocation_is_the_best_similarity_cache
- theory/test_placement_exact.py::test_it_finds_the_best_of_all_allocations
Lemma C.1 | The step of a capped sum. | covered
- theory/test_placement_gain.py::test_capacities_costs_and_gains_are_the_papers
Lemma C.2 | The cost as a sum of capped sums. | covered
- theory/test_placement_gain.py::test_capacities_costs_and_gains_are_the_papers
Theorem D.1 | Algorithm 2 is the projection, in O(M log M). | covered
- theory/test_placement_projection.py::test_both_are_the_bregman_projection
Lemma E.1 | Eq. 18 is a subgradient. | covered
- theory/test_placement_gain.py::test_the_subgradient_bounds_the_gain_and_is_its_slope
Lemma F.1 | The gain is concave. | covered
- theory/test_placement_gain.py::test_the_subgradient_bounds_the_gain_and_is_its_slope
Lemma F.2 | Strong convexity of the mirror map. | covered
- inferway.placement.regret:regret_bound
- theory/test_placement_lemmas.py::test_f_2_the_mirror_map_is_strongly_convex
Lemma F.3 | The bound of the subgradients. | covered
- theory/test_placement_lemmas.py::test_f_3_subgradients_are_bounded
Lemma F.4 | The dual norm. | covered
- theory/test_placement_lemmas.py::test_f_4_the_norms_are_dual
Lemma F.5 | The bound of the Bregman divergence. | covered
- theory/test_placement_lemmas.py::test_f_5_the_divergence_from_the_first_state_is_bounded
Lemma F.6 | The gain where no repository serves yet. | covered
- theory/test_placement_lemmas.py::test_f_6_and_f_9_the_gain_lies_between_its_bounding_functions
Lemma F.7 | A capped sum is at least its product form. | covered
- theory/test_placement_lemmas.py::test_f_7_and_f_8_a_capped_sum_and_its_product
Lemma F.8 | The product form is at least 1 - 1/e of it. | covered
- theory/test_placement_lemmas.py::test_f_7_and_f_8_a_capped_sum_and_its_product
Lemma F.9 | The gain lies between Lambda and Lambda / psi. | covered
- theory/test_placement_lemmas.py::test_f_6_and_f_9_the_gain_lies_between_its_bounding_functions
Lemma F.10 | DepRound is negatively correlated. | covered
- theory/test_placement_lemmas.py::test_f_10_rounding_is_negatively_correlated_in_any_number
- theory/test_placement_rounding.py::test_dep_round_is_negatively_correlated
Lemma F.11 | Rounding loses nothing of Lambda in the mean. | covered
- theory/test_placement_lemmas.py::test_f_11_rounding_loses_nothing_of_the_lower_function
Theorem V.1 | The (1 - 1/e)-regret is at most A sqrt(T). | covered
- regret
- milp-gap
- theory/test_placement_infida.py::test_regret_grows_slower_than_time
Prop. V.1.1 | INFIDA-offline gains (1 - 1/e - eps) of the best static allocation. | covered
- theory/test_placement_exact.py::test_infida_offline_keeps_its_promise_against_the_optimum
App. G, constant A | The constant of the regret bound. | covered
- inferway.placement.regret:RegretBound
- unit/placement/test_bound.py::test_it_is_appendix_gs
App. G, learning rate | eta = sqrt(2 theta D_max / T) / sigma. | covered
- regret
- inferway.placement.regret:RegretBound
- theory/test_placement_lemmas.py::test_g_the_learning_rate_keeps_the_regret_below_its_bound
Footnote 2 | Several copies of a model are models of their own. | covered
- inferway.network.options:Models
- unit/network/test_delivery.py::test_many_equal_costs_keep_their_order
Footnote 3 | A model's size and speed differ by node. | different
- unit/network/test_deployed.py::test_capacity_is_frames_per_second_times_the_slot
= (../guides/describe-a-network.md) speed differs by hardware; a model's size is the same on
  all nodes
Footnote 4 | Costs may change with time. | covered
- inferway.placement.delays:MeasuredDelays
- unit/placement/test_delays.py::test_who_measures_decides_as_who_was_told_by_the_file
- live/node/test_slow_link.py::test_copies_follow_a_link_that_becomes_slow_and_quick_again
Footnote 6 | A deployed model has at most six better alternatives upstream. | different
- upstream
= there are up to 39, or 14 where copies of a model count as one
Footnote 8 | alpha counts inaccuracy in 0 to 100. | covered
- inferway.network.options:latency_and_inaccuracy
""",
    "SiSalem21": """
Fig. 1 | Fixed and sliding popularity. | covered
- popularity
- unit/workload/test_popularity.py::test_the_papers_profile
Fig. 2 | Allocations by tier at alpha 1, 3 and 4, 86 nodes. | different
- edge-tiers
= budgets and single round-trip times are ours; few requests reach the cloud
Fig. 3 | Latency, inaccuracy and gain against alpha on smaller nodes. | different
- edge-alpha
= INFIDA gains up to 1.5 times greedy's, not 2.5 times
Fig. 4 | Gain against the request rate. | different
- edge-rate
= greedy to the letter drops what serves well at any rate
Table I | Notation. | covered
- inferway.placement.layout:Layout
Algorithm 1 | INFIDA. | covered
- inferway.placement.infida:Infida
Lemma III.1 | The gain as savings times additional requests. | covered
- theory/test_placement_gain.py::test_capacities_costs_and_gains_are_the_papers
Theorem V.1 | Sublinear (1 - 1/e)-regret. | covered
- regret
- milp-gap
Corollary V.1.1 | The offline solution. | covered
- theory/test_placement_exact.py::test_infida_offline_keeps_its_promise_against_the_optimum
Sec. IV-C | What to do with the dangling variable: best marginal gain, or elastic budgets. |
  covered
- theory/test_placement_rounding.py::test_a_strict_budget_is_filled_by_value
Sec. VI, greedy | Greedy by counters of what is forwarded. | covered
- inferway.placement.counters:Greedy
- edge-alpha
Footnote 3 | At most six better alternatives upstream. | different
- upstream
= there are up to 39, on Topology I of the journal
""",
    "Anonymous": """
Fig. 1 | The trade-off of latency and accuracy. | covered
- trade-off
Fig. 2 | Batch inference time of ResNet models on a Titan X. | different
- batch-times
= no such GPU here, and no numbers in the text: the digits zoo on a processor
Fig. 3 | n servers in K classes with a dispatcher. | covered
- inferway.site.fleet:Fleet
- theory/test_bound.py::test_the_papers_fleet
Fig. 4 | R-JIQ's latency against the size of the site. | different
- r-jiq-limit
= the routing of eq. 4 alone still costs up to 10.7 % at n = 4096
Fig. 5 | Tolerated error of the arrival rate. | different
- wrong-rate
= a higher target does not make it less tolerant at every load
Fig. 6 | Accuracy and latency against load, n = 64. | different
- small-site
= the caption's standard deviations are below what independent draws give
Fig. 7 | The same, n = 4096. | different
- large-site
= TAD-OP is up to 13 % above the bound at target 0.72 and load 0.98
Fig. 8 | Deterministic service, n = 256. | different
- deterministic-site
= TAD is 0.8 % faster than TAD-OP at one point
Fig. 9 | Load that varies with time. | covered
- varying-load
Fig. 10 | A target that varies with time. | covered
- varying-target
Fig. 11 | Caption of Figs. 9 and 10 together. | covered
- varying-load
- varying-target
Algorithm 1 | Waterfilling. | covered
- inferway.dispatch.bounds:waterfill
- theory/test_bound.py::test_waterfilling_is_the_lp_on_ordered_fleets
Algorithm 2 | TAD-OP. | covered
- inferway.dispatch.tad_op:TadOp
- theory/test_policies.py::test_tad_op_is_algorithm_2
Sec. 3.2, R-JIQ | Random class by eq. 4, then an idle server. | covered
- inferway.dispatch.routing:RJiq
- theory/test_policies.py::test_r_jiq_mixes_in_the_shares_of_the_greatest_rate
Sec. 3.2, R-JSQ and R-JSQ-d | The same with the shortest queue, of all or of d. | different
- r-jsq
- inferway.dispatch.routing:RJsqD
= with two servers, whatever the size, R-JSQ-d does not come to the optimum
Sec. 3.4 | R-JIQ with an estimated rate. | covered
- rate-window
Sec. 4, TAD | Track the accuracy difference. | covered
- inferway.dispatch.tad_op:Tad
- theory/test_policies.py::test_tad
Definition 1 | The greatest arrival rate. | covered
- inferway.dispatch.bounds:max_rate
- theory/test_bound.py::test_the_greatest_rate_is_where_the_lp_ends
Definition 2 | Routing tuples. | covered
- inferway.dispatch.bounds:routing_tuples
- theory/test_bound.py::test_tuples_sum_to_one_and_meet_the_target
Assumption 1 | The LP has one solution. | different
- theory/test_bound.py::test_waterfilling_is_the_lp_on_ordered_fleets
= (queueing.md) not assumed: costs agree on random fleets, ties included
Example 1 | A rate told 1.25 % too low. | covered
- underestimate
Example 2 | TAD's pair is a fifth slower. | covered
- wrong-pair
- theory/test_bound.py::test_example_2_of_the_paper
Example 3 | A pair that shuffles. | different
- shuffle-pair
= two of its numbers do not follow from its own; the conclusion stands
Lemma 1 | The LP bounds the response time of every policy. | covered
- inferway.dispatch.bounds:solve
- theory/test_bound.py::test_duality
- theory/test_mdp.py::test_between_the_lp_and_what_policies_reach
Lemma 2 | Response time, accuracy and blocking of R-JIQ. | different
- blocking
- r-jiq-limit
= eq. 46 drops a term of eq. 45, with which the response time is met
Lemma 3 | Two classes are optimal without capacities. | covered
- inferway.dispatch.bounds:relaxed
- theory/test_bound.py::test_without_capacities_the_closed_form_is_the_lp
Lemma 4 | N_LP-LB is continuous and convex. | covered
- theory/test_bound_lemmas.py::test_lemma_4_the_number_in_service_is_convex_and_does_not_fall
Lemma 5 | Its right derivative is the cost of a routing tuple. | covered
- theory/test_bound_lemmas.py::test_lemma_5_the_right_derivative_is_a_routing_tuple
Lemmas 6 to 8 | Waterfilling is feasible and optimal up to the greatest rate. | covered
- theory/test_bound.py::test_waterfilling_is_the_lp_on_ordered_fleets
Lemma 9 | The right derivative is a routing at the target. | covered
- theory/test_bound_lemmas.py::test_lemma_5_the_right_derivative_is_a_routing_tuple
Lemma 10 | It is the only one that costs so little. | covered
- theory/test_bound_lemmas.py::test_lemma_10_no_other_routing_of_these_signs_costs_as_little
Lemma 11 | Jobs in a JIQ system below the Halfin-Whitt regime, from the literature. | not there
- blocking
= it is another paper's; what follows from it for blocking is checked
Theorem 1 | Waterfilling solves the LP. | covered
- theory/test_bound.py::test_waterfilling_is_the_lp_on_ordered_fleets
Sec. 5.2 and 6 | Singletons and pairs that shuffle are needed. | covered
- ablation
Sec. 8.1, energy | A second constraint, an energy budget. | covered
- energy
- theory/test_bound.py::test_duality_with_an_energy_budget
Sec. 8.1, triplets | Tuples for several constraints. | covered
- inferway.dispatch.triplets:fill
- theory/test_bound_lemmas.py::test_triplets_fill_the_lp_with_two_means
- energy
Sec. 8.1, R-JIQ with pairs | Negative routing vectors by cancelling and rerouting. | covered
- rerouting
- unit/studies/test_rerouted.py::test_rerouting_keeps_the_target_where_pairs_shuffle
Sec. 8.1, guarantees | A proof for TAD-OP. | not there
- promise
= open; `promise` measures where it keeps the target
""",
    "Tan24": """
Fig. 1 | Two light and two heavy instances behind a scheduler. | covered
- inferway.studies.scheduling.burst:scenario
Fig. 2 | Learning curves. | covered
- learning-curves
Fig. 3 | Required latencies from 150 to 450 ms. | different
- deadlines
= SA has more violations than printed; all 13 deadlines are there
Fig. 4 | Learning curves with batches. | covered
- learning-curves
Fig. 5a, b, d, e | Batch sizes in the course of training. | different
- batch-course
= trainings of 2 million slots and not 250; the bursty state's curves are no more variable than the
  normal one's
Fig. 5c, f | Final batch sizes. | different
- batch-sizes
= the paper prints no batch times, and ours learned no heavy batches of 5
Fig. 6 | Learning curves, periodic workload. | covered
- learning-curves
Table 1 | Notation. | covered
- inferway.learning.routed:Routed
Table 2 | All schedulers on both workloads. | different
- table-2
= HW-E, SQ, SA and InFaaS have cells that do not reconcile
Algorithm 1 | Periodic updates by PPO. | covered
- inferway.learning.ppo:Learner
- unit/learning/test_ppo.py::test_learns_to_spare_the_heavy_servers_in_bursts
Proposition 1 | With all of the state seen it is a Markov decision process. | covered
- unit/scheduling/test_observation.py::test_the_workload_is_seen_where_the_layout_says_so
- theory/test_routed.py::test_it_goes_on_where_its_state_was_taken
Proposition 2, eq. 9 | The density of a softmax of a Gaussian. | covered
- inferway.learning.density:SoftmaxGaussian
- unit/learning/test_density.py::test_is_what_the_paper_prints
Eq. 2 | The reward. | covered
- theory/test_routed.py::test_rewards_are_those_of_what_was_counted
Eq. 11 | Advantages. | covered
- unit/learning/test_rewards.py::test_advantages_are_the_sums_of_eq_11_with_gamma
Eq. 12 | The workload's matrices. | different
- table-2
- unit/workload/test_markovian.py::test_the_edge_example_has_long_bursts
= the printed D0 is not that of the evaluation
Sec. 4, DDPG | DDPG fails. | different
- learning-curves
= of three seeds, evaluated without noise after 300,000 slots, none fails
Sec. 4, recurrent policies | Memory does not help. | different
- learning-curves
= of three seeds, evaluated without noise, it helps by 0.1 points
Sec. 4, phase estimation | An optimal estimate of the MAP's phase. | different
- phase-estimate
- unit/studies/scheduling/test_filtered.py::test_of_times_with_a_chance_so_many_are_in_the_phase
= it recovers all that the state is worth, where the paper holds it to be meaningless
Sec. 5.1.7, LW, HW, HW-E | Conventional approaches. | different
- table-2
- inferway.scheduling.fixed:FixedRouting
= HW-E needs other service times than HW
Sec. 5.1.7, SQ | A single queue. | different
- table-2
- inferway.dispatch.ordered:SingleQueue
= no way to break ties gives the printed share
Sec. 5.1.7, SA | Stationary approximation. | different
- table-2
- inferway.scheduling.sa:StationaryApproximation
= the program of Appendix F is not in the text
Sec. 5.1.7, InFaaS | Load balancing by overload. | different
- table-2
- inferway.scheduling.infaas:Infaas
= no threshold gives the printed share
Sec. 5.2.2 | Adaptive batching by a modified Neuts rule. | covered
- batch-sizes
- unit/dispatch/test_batching.py::test_the_modified_neuts_rule_of_a_file
Sec. 5.2.3 | A periodic, non-Markovian workload. | covered
- table-2
- learning-curves
Sec. 5.2.4 | The cost of probabilistic routing. | covered
- routing-cost
Sec. 3.1.4 | The alias method. | covered
- inferway.dispatch.alias:tabulate
- routing-cost
Sec. 6.2, events | Decisions triggered by events. | covered
- table-2
Sec. 6.2, ensembles | Adaptive ensembles of models. | different
- escalation
- inferway.dispatch.escalate:Escalate
= by a rule of dispatch and not learned: where an answer's confidence says that it pays, a second
  variant is asked, and its answer takes the first one's place; answers are not combined, and
  schedulers choose one instance a request
Sec. 6.2, instances | Model instances that change with time, and scaling. | different
- changing-instances
- inferway.learning.routed:come_and_go
- theory/test_come_and_go.py::test_a_plain_site_whose_servers_come_and_go
- unit/scheduling/test_store.py::test_one_policy_decides_for_any_servers_that_are_left
- live/test_scheduling.py::test_one_policy_follows_whatever_instances_there_are
= one learned policy is told which of its instances are there and decides for any part of them;
  which these are is not its choice: faults, files and the placement policy `assign` say it
Sec. 6.2, tasks | Several tasks in one policy. | covered
- several-tasks
- inferway.learning.together:JointSites
- unit/scheduling/test_together_in_the_twin.py::test_all_are_shown_at_once_each_slot_and_all_obey
- unit/live/test_scheduler.py::test_one_controller_routes_the_requests_of_several_tasks
Sec. 6.3 | A policy for each setting of instances, switched at faults. | covered
- unit/scheduling/test_store.py::test_the_policy_of_the_servers_that_are_left_takes_over
""",
}


class Item(NamedTuple):
    """A figure, table, algorithm, example, numbered statement or named extension of a paper."""

    name: str  # As the paper has it
    says: str
    state: str  # `COVERED`, `DIFFERENT` or `ABSENT`
    by: tuple[str, ...]  # Studies, tests and code
    why: str  # What is different or not there; empty where it is covered
    where: str  # The page and anchor that say so, as seen from docs/studies; empty for a study's


def items(text: str) -> list[Item]:
    """Read the items of a paper, in their order."""
    found = []
    for block in re.split(r"\n(?=[^-= ])", text.strip()):
        head, *rest = re.split(r"\n(?=[-=] )", re.sub(r"\n  +", " ", block))
        name, says, state = head.split(" | ")
        by = tuple(line[2:] for line in rest if line.startswith("- "))
        reason = " ".join(line[2:] for line in rest if line.startswith("= "))
        where, _, why = reason[1:].partition(") ") if reason.startswith("(") else ("", "", reason)
        found.append(Item(name, says, state, by, why, where))
    return found


ITEMS: Final = {key: items(text) for key, text in TEXT.items()}


def linked(reference: str) -> str:
    """A reference as Markdown, as seen from docs/studies."""
    if "::" in reference:
        file, name = reference.split("::")
        return f"[{name}](../../tests/{file})"
    if ":" in reference:
        return f"`{reference.replace(':', '.')}`"
    return f"[`{reference}`]({place_of(reference)})"


def state(item: Item) -> str:
    """The state in words, with the reason and, where it is different, the place that says so."""
    if item.state == COVERED:
        return COVERED
    if item.state == ABSENT:
        return f"**{ABSENT}**: {item.why}"
    return f"[{DIFFERENT}]({place(item)}): {item.why}"


def place(item: Item) -> str:
    """Where it is said what is different: at the first of its studies, if no place is given."""
    return item.where or place_of(next(one for one in item.by if ":" not in one))


# Studies of which two or more share a section of their page, or whose section has another name.
_SECTIONS: Final = {
    "deadlines": "required-latencies-fig-3",
    "learning-curves": "learning-curves-figs-2-4-6",
    "batch-sizes": "batches-fig-5",
    "batch-course": "batches-in-training-fig-5a-b-d-e",
    "routing-cost": "routing-cost-sec-524",
    "changing-instances": "instances-that-come-and-go",
}


def place_of(name: str) -> str:
    """Page and section of a study."""
    return f"{study(name).part}.md#{_SECTIONS.get(name, name)}"


def page() -> str:
    """The page, whole."""
    count = Counter(item.state for listed in ITEMS.values() for item in listed)
    parts = [
        "# What of the papers is covered\n",
        f"Every figure, table, algorithm, example, numbered statement and named extension of the "
        f"[four papers](../references.md): {count.total()} items. {count[COVERED]} are covered, "
        f"{count[DIFFERENT]} are different, and {count[ABSENT]} are not there, each with its "
        "reason. Equations are listed where they define something. The text at hand of [Tan24] has "
        "no appendices.\n",
        "- *covered*: computed or tested as the paper has it. Which of its sentences hold, the "
        "tables of the studies say, claim by claim.\n"
        "- *different*: done, with another result or in another reading; the link leads to where "
        "it is said.\n"
        "- *not there*: with the reason.\n",
        "Code is named as it is imported. `python docs/covered.py` writes this page; a test holds "
        "that everything it refers to exists.\n",
    ]
    for key, listed in ITEMS.items():
        rows = [
            f"| {item.name} | {item.says} | {', '.join(map(linked, item.by))} | {state(item)} |"
            for item in listed
        ]
        head = ["| item | | covered by | state |", "|---|---|---|---|"]
        parts.append(f"## [{key}]\n\n" + "\n".join([*head, *rows]) + "\n")
    parts.append("\n".join(f"[{key}]: ../references.md" for key in ITEMS) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page())
