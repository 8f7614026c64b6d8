"""Placement over time: a fleet of servers that prefill in order of arrival, and the router's own `place` before it."""

import heapq
import random
import statistics
from dataclasses import dataclass, field

import pytest

from dayzero.router import Candidate, CostModel, InFlight, PlaceRequest, ReplicaId, Report, View, place

COST = CostModel(fixed_s=0, prefill_s_per_token=0.0008, decode_s_per_running=0, slot_s=0)


@dataclass(frozen=True)
class Job:
    at_s: float
    prefix: str
    prefix_tokens: int
    own_tokens: int

    @property
    def tokens(self):
        return self.prefix_tokens + self.own_tokens


@dataclass
class Server:
    """Prefills one prompt after the other; what it once computed stays cached."""

    free_s: float = 0.0
    cached: set = field(default_factory=set)
    ends: list = field(default_factory=list)
    """(finish_s, uncached tokens) of what is there."""
    served: int = 0
    busy_s: float = 0.0
    report: Report = field(default_factory=lambda: Report(0, 0, 0, 0.0))

    def take(self, job):
        """Seconds to its first token."""
        uncached = job.own_tokens + (0 if job.prefix in self.cached else job.prefix_tokens)
        work_s = uncached * COST.prefill_s_per_token
        self.free_s = max(self.free_s, job.at_s) + work_s
        self.cached.add(job.prefix)
        self.ends.append((self.free_s, uncached))
        self.served += 1
        self.busy_s += work_s
        return self.free_s - job.at_s

    def look(self, now_s):
        self.ends = [(end_s, tokens) for end_s, tokens in self.ends if end_s > now_s]
        left_s = max(self.free_s - now_s, 0.0)
        self.report = Report(len(self.ends), 0, round(left_s / COST.prefill_s_per_token), now_s)


@dataclass
class Outcome:
    first_token_s: list
    in_flight: dict
    """Time average of what was there, by replica."""
    servers: dict
    homes: list


def run(jobs, replicas, *, routers=1, report_every_s=0.0, sees_cache=True):
    servers = {ReplicaId(f"r{i}"): Server() for i in range(replicas)}
    books = [InFlight() for _ in range(routers)]
    firsts, homes, samples = [], [], {name: [] for name in servers}
    releases, reported_s = [], float("-inf")
    for number, job in enumerate(sorted(jobs, key=lambda j: j.at_s)):
        while releases and releases[0][0] <= job.at_s:
            heapq.heappop(releases)[2].release()
        if job.at_s - reported_s >= report_every_s:
            reported_s = job.at_s
            for server in servers.values():
                server.look(job.at_s)
        book = books[number % routers]
        candidates = tuple(
            Candidate(
                replica=name,
                slots=10_000,
                max_requests=10_000,
                report=server.report,
                own=book.own(name),
                unreported=book.unreported(name, server.report.at_s),
                reusable_tokens=job.prefix_tokens if sees_cache and job.prefix in server.cached else 0,
            )
            for name, server in servers.items()
        )
        placement = place(PlaceRequest(str(number), job.tokens), View(candidates, COST), job.at_s)
        home = placement.order[0]
        uncached = job.tokens - (placement.scores[0].reusable_tokens or 0)
        first_s = servers[home].take(job)
        held = book.reserve(home, uncached, job.at_s)
        heapq.heappush(releases, (job.at_s + first_s, number, held))
        firsts.append(first_s)
        homes.append((job, home))
        for name, server in servers.items():
            samples[name].append(sum(end_s > job.at_s for end_s, _ in server.ends))
    return Outcome(firsts, {n: statistics.mean(s) for n, s in samples.items()}, servers, homes)


def percentile(values, share):
    return sorted(values)[int(share * (len(values) - 1))]


def hot_prefix(seed, requests=3000):
    """80 % share one prefix of 20k tokens, at 1.5 times what one replica can do; the others are all different."""
    rng = random.Random(seed)
    hot_per_s = 1.5 / (1000 * COST.prefill_s_per_token)
    at_s, jobs = 0.0, []
    for i in range(requests):
        at_s += rng.expovariate(hot_per_s / 0.8)
        hot = rng.random() < 0.8
        jobs.append(Job(at_s, "hot", 20_000, 1000) if hot else Job(at_s, f"cold-{i}", 1500, 500))
    return jobs


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_hot_prefix_spreads_once_its_holder_s_queue_costs_more_than_computing_it(seed):
    """FIELD_REPORTS G1, first part."""
    jobs = hot_prefix(seed)
    ours, least_load = run(jobs, 4), run(jobs, 4, sees_cache=False)
    holders = [name for name, server in ours.servers.items() if "hot" in server.cached]
    assert len(holders) >= 2, "the prefix stayed on one replica, which cannot carry it"
    loads = ours.in_flight.values()
    assert max(loads) / statistics.mean(loads) <= 1.5
    assert percentile(ours.first_token_s, 0.99) <= 1.1 * percentile(least_load.first_token_s, 0.99)


def test_one_request_after_another_stays_with_its_prefix():
    jobs = [Job(float(60 * i), "hot", 20_000, 1000) for i in range(50)]
    outcome = run(jobs, 4)
    assert len({home for _, home in outcome.homes}) == 1
    assert max(outcome.first_token_s[1:]) < 1


def test_misses_avoid_the_replica_that_is_busy():
    """FIELD_REPORTS G1, second part: one replica has heavy unique prompts while the others idle."""
    jobs = [Job(0.0, "heavy", 0, 300_000)]
    jobs += [Job(1.0 + 2.0 * i, f"cold-{i}", 0, 1000) for i in range(90)]
    outcome = run(jobs, 4)
    busy = outcome.homes[0][1]
    assert all(home != busy for _, home in outcome.homes[1:])


def long_and_short(seed):
    """Four prompts of 500k tokens, then 200 short ones within a minute."""
    rng = random.Random(seed)
    jobs = [Job(float(i), f"long-{i}", 0, 500_000) for i in range(4)]
    jobs += [Job(rng.uniform(5, 65), f"short-{i}", 0, rng.randint(200, 2000)) for i in range(200)]
    return jobs


@pytest.mark.parametrize("seed", [11, 12, 13, 14])
@pytest.mark.parametrize(("report_every_s", "at_most"), [(0.0, 1.1), (0.3, 1.5)])
def test_a_few_long_prompts_are_seen_however_many_routers_there_are(report_every_s, at_most, seed):
    """FIELD_REPORTS G4. Between two reports a router cannot know what others sent, which costs some waiting."""
    means = {}
    for routers in (1, 3, 6):
        outcome = run(long_and_short(seed), 8, routers=routers, report_every_s=report_every_s)
        behind_long = {home for job, home in outcome.homes if job.prefix.startswith("long")}
        assert len(behind_long) == 4, f"{routers} routers put two long prompts on one replica"
        assert not behind_long & {home for job, home in outcome.homes if job.prefix.startswith("short")}
        pairs = zip(outcome.first_token_s, outcome.homes, strict=True)
        means[routers] = statistics.mean(s for s, (job, _) in pairs if job.prefix.startswith("short"))
    assert max(means.values()) / min(means.values()) < at_most, means
