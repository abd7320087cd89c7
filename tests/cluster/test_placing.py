"""Which worker gets which jobs, how many at a time, and which of them are suspected when it ends; without a cluster."""

from __future__ import annotations

import copyreg
import time

import pytest

from ptxkit.cluster import placing, roster, work
from ptxkit.cluster.bundles import Bundles
from ptxkit.cluster.held import WorkerThrottled
from ptxkit.cluster.jobs import CPU, GPU, Job, WorkerState
from ptxkit.cluster.placing import Placing
from ptxkit.cluster.suspects import Suspects
from ptxkit.cluster.waiting import Waiting
from ptxkit.errors import FaultError, PtxkitError


def worker(name, cpu=2, gpu=1):
    return WorkerState(name, name, "host", {CPU: cpu, GPU: gpu}, {})


def job(resource=GPU, prefers="", only=""):
    return Job("measuring", resource, divmod, lambda: (7, 2), prefers, only)


def placed(waiting, workers, seconds=None):
    """Place jobs and return (name of the worker, number of jobs) of each bundle."""
    if seconds is not None:
        done = job(waiting.resource if isinstance(waiting, Job) else GPU)
        done.seconds = seconds
        waiting.took(done)
    found = []
    for chosen, jobs in waiting.next(workers):
        for one in jobs:
            chosen.give(one, None)
        found.append((chosen.name, len(jobs)))
    return found


@pytest.fixture
def clock(monkeypatch):
    """A clock that only moves when it is told to."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def accepted(count, suspect=None, **given):
    """Jobs that wait; a worker has ended while it executed the one whose number is ``suspect``."""
    waiting, jobs = Placing(), [job(**given) for _ in range(count)]
    for number, one in enumerate(jobs):
        one.ended += ["c"] * (number == suspect)
        waiting.accept(one)
    return waiting, jobs


def test_a_job_is_sent_at_once_and_a_gpu_gets_no_second_one_before_its_time_is_known(clock):
    waiting, _ = accepted(5)
    assert placed(waiting, [worker("a"), worker("b")]) == [("a", 1), ("b", 1)]
    assert not waiting.hurried


def test_short_jobs_wait_on_their_worker_and_are_divided_evenly(clock):
    waiting, _ = accepted(8)
    assert placed(waiting, [worker("a"), worker("b")], seconds=0.03) == [("a", 4), ("b", 4)]


def test_no_job_waits_behind_a_long_one(clock):
    waiting, _ = accepted(8)
    assert placed(waiting, [worker("a")], seconds=5.0) == [("a", 1)]


def test_the_time_of_jobs_for_each_worker_says_nothing_about_others(clock):
    waiting, _ = accepted(8)
    started = job(only="a")
    started.seconds = 5.0
    waiting.took(started)
    assert placed(waiting, [worker("a")], seconds=0.03) == [("a", 8)]


def test_jobs_that_come_faster_than_bundles_may_be_sent_go_together(clock, monkeypatch):
    monkeypatch.setattr(placing, "AT_ONCE", 2)
    waiting, _ = accepted(2)
    workers = [worker("a"), worker("b")]
    assert placed(waiting, workers) == [("a", 1), ("b", 1)]
    for _ in range(40):
        waiting.accept(job())
    assert placed(waiting, workers, seconds=0.005) == []
    assert waiting.hurried
    clock[0] += 2.1 / placing.BUNDLES_S
    assert placed(waiting, workers) == [("a", 20), ("b", 20)]


def test_no_worker_gets_more_than_its_share_after_one_short_job(clock):
    waiting, _ = accepted(100)
    workers = [worker(name) for name in "abcd"]
    placed(waiting, workers, seconds=1e-4)
    assert [one.count(GPU) for one in workers] == [25, 25, 25, 25]


def test_many_workers_are_not_all_looked_at_whenever_something_changes(clock):
    waiting, _ = accepted(2000)
    workers = [worker(str(number)) for number in range(1000)]
    assert len(placed(waiting, workers)) == placing.AT_ONCE
    clock[0] += 0.9 * 1000 * placing.LOOK_EACH_S
    assert (placed(waiting, workers), waiting.hurried) == ([], True)
    clock[0] += 1.0
    assert len(placed(waiting, workers)) == placing.AT_ONCE


def test_a_worker_of_many_gets_enough_until_it_has_its_turn_again(clock):
    waiting, _ = accepted(10_000)
    workers = [worker(str(number)) for number in range(1000)]
    (_, count), *_ = placed(waiting, workers, seconds=5.0)
    assert count > 1000 / placing.BUNDLES_S / 5.0


def test_jobs_are_taken_in_their_order_after_those_that_prefer_the_worker():
    waiting, jobs = Waiting(), [job(prefers=name) for name in "abab"]
    for one in jobs:
        waiting.add(one)
    suspect, early = job(), job(prefers="b")
    suspect.ended.append("c")
    waiting.add(suspect)
    waiting.add(early, first=True)
    assert (len(waiting), list(waiting)) == (5, [suspect, early, *jobs])
    assert waiting.take(3, "b") == [early, jobs[1], jobs[3]]
    assert waiting.take(9, "c") == [jobs[0], jobs[2]]
    assert (len(waiting), list(waiting.suspects)) == (0, [suspect])


def test_a_worker_gets_what_it_compiled(clock):
    waiting = Placing()
    for name in "abba":
        waiting.accept(job(prefers=name))
    a, b = worker("a"), worker("b")
    placed(waiting, [a, b], seconds=0.03)
    assert {one.prefers for one in a.running} == {"a"}
    assert {one.prefers for one in b.running} == {"b"}


def test_a_suspect_is_executed_alone(clock):
    waiting, jobs = accepted(4, suspect=2, resource=CPU)
    a, b = worker("a", cpu=4), worker("b", cpu=4)
    placed(waiting, [a, b])
    assert list(a.running) == [jobs[2]]
    assert list(b.running) == [jobs[0], jobs[1], jobs[3]]


def test_a_job_for_one_worker_waits_for_it_or_learns_that_it_is_lost(clock):
    waiting, a = Placing(), worker("a")
    here, there = job(only="a"), job(only="b")
    waiting.accept(here)
    waiting.accept(there)
    busy = job()
    a.give(busy, None)
    assert list(waiting.pinned({"a": a})) == [(None, there)]
    a.take(busy)
    assert list(waiting.pinned({"a": a})) == [(a, here)]


def test_jobs_that_a_worker_cannot_have_begun_are_not_suspected():
    a, jobs = worker("a", cpu=2, gpu=1), [job(CPU) for _ in range(6)] + [job(GPU) for _ in range(6)]
    for one in jobs:
        a.give(one, None)
    assert a.begun() == [*jobs[:4], *jobs[6:8]]


def test_a_job_is_quarantined_after_two_workers_unless_workers_end_whatever_they_execute():
    suspects, one = Suspects(), job()
    assert suspects.ended("a", [one]) == [one]
    assert suspects.ended("b", [one]) == []
    assert suspects.judge() == []
    with pytest.raises(FaultError, match="quarantined: the workers a and b ended"):
        one.future.result(0)

    suspects, one = Suspects(), job()
    for name in "abc":
        (innocent,) = suspects.ended(name, [job()])
        innocent.future.set_result(0)
    suspects.ended("d", [one])
    suspects.ended("e", [one])
    assert suspects.judge() == [one]
    suspects.ended("f", [one])
    suspects.ended("g", [one])
    assert not one.future.done()  # three that ended by chance allow a fifth
    suspects.ended("h", [one])
    assert "quarantined" in str(one.future.exception(0))


@pytest.mark.parametrize("ended", ["idle", "unused", "innocent"])
def test_one_worker_that_ends_without_a_reason_is_enough_to_try_again(ended):
    suspects, one = Suspects(), job()
    suspects.ended("a", [one])
    suspects.ended("b", [one])
    if ended == "unused":
        suspects.by_chance = 1
    else:
        others = [] if ended == "idle" else [job()]
        for other in suspects.ended("c", others):
            other.future.set_result(0)
    assert suspects.judge() == [one]


def test_a_worker_that_was_started_again_is_named_once():
    suspects, one = Suspects(), job()
    suspects.ended("a", [one])
    suspects.ended("a", [one])
    suspects.judge()
    with pytest.raises(FaultError, match="quarantined: the worker a ended 2 times while it executed it"):
        one.future.result(0)


def test_a_suspect_is_executed_on_a_worker_whose_processes_have_started(clock):
    waiting, _ = accepted(1, suspect=0)
    fresh, warm = worker("fresh"), worker("warm")
    warm.done[GPU] = 3
    assert placed(waiting, [fresh, warm]) == [("warm", 1)]


def test_a_worker_that_ends_before_it_has_a_job_is_counted():
    workers = roster.Roster(None, "", (), print, None, lambda function, *arguments: None)
    try:
        for listed in ({"a": {"last_seen": 1.0}}, {}, {}):
            assert workers._compare("one", listed, time.monotonic()) == []
    finally:
        workers.close()
    assert workers.ended_unused == 1


@pytest.mark.parametrize(("scheduler", "how"), [("one", "has ended"), ("another", roster.RESTARTED)])
def test_a_worker_has_not_ended_where_it_is_the_scheduler_that_was_started_again(scheduler, how):
    workers = roster.Roster(None, "", (), print, None, lambda function, *arguments: None)
    known = worker("a")
    workers.workers[known.address] = known
    try:
        assert workers._compare("one", {known.address: {"last_seen": 1.0}}, time.monotonic()) == []
        assert workers._compare(scheduler, {}, time.monotonic()) == [(known, how)]
    finally:
        workers.close()


class Task:
    """A future of Dask."""

    status = "pending"
    released = False

    def release(self):
        self.released = True


class Client:
    """What bundles need of a client of Dask."""

    status = "closed"  # nothing is asked of a scheduler

    def __init__(self):
        self.sent = []

    def subscribe_topic(self, topic, handler):
        self.topic, self.handler = topic, handler

    def submit(self, function, topic, resource, parcel, **given):
        self.sent.append((Task(), work.pickle.loads(parcel), given["workers"]))
        return self.sent[-1][0]


@pytest.fixture
def bundles():
    finished = []
    client = Client()
    made = Bundles(client, lambda function, *arguments: function(*arguments), lambda *found: finished.append(found))
    made.client, made.finished = client, finished
    yield made
    made.close()


def answer(bundles, number, found=None, error=None):
    bundles.client.handler((0.0, [number, work.pickle.dumps((found, error)), 0.5]))


def test_answers_arrive_one_by_one_and_each_counts_once(bundles):
    a, jobs = worker("a"), [job(), job()]
    bundles.send(a, jobs)
    ((task, parcel, workers),) = bundles.client.sent
    assert [(function, arguments) for _, function, arguments in parcel] == [(divmod, (7, 2))] * 2
    assert workers == ["a"]
    numbers = [number for number, _, _ in parcel]
    answer(bundles, numbers[1], "second")
    answer(bundles, numbers[1], "again")
    assert bundles.finished == [(a, jobs[1], "second", None)]
    assert (list(a.running), jobs[1].seconds) == ([jobs[0]], 0.5)
    answer(bundles, numbers[0], error=WorkerThrottled("hot"))
    assert isinstance(bundles.finished[1][3], WorkerThrottled)
    bundles.look()
    assert task.released


def test_answers_of_a_worker_that_was_given_up_are_ignored(bundles):
    a, jobs = worker("a"), [job(GPU), job(GPU)]
    bundles.send(a, jobs)
    bundles.send(a, [job(CPU)])
    number = bundles.client.sent[0][1][0][0]
    answer(bundles, number, "first")
    assert bundles.recall(a, GPU) == [jobs[1]]
    answer(bundles, number + 1, "late")
    assert len(bundles.finished) == 1
    assert [one.resource for one in a.running] == [CPU]


def test_an_answer_that_cannot_be_read_is_an_error_of_the_job(bundles):
    bundles.send(worker("a"), [job()])
    bundles.client.handler((0.0, [bundles.client.sent[0][1][0][0], b"?", 0.0]))
    assert isinstance(bundles.finished[0][3], FaultError)


class Unsendable(PtxkitError):
    """An error that cannot be made again from its text alone."""

    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


def test_whatever_a_job_raises_arrives_as_an_error(monkeypatch):
    # Dask lets pickle make exceptions again without their constructor, if their classes are known when it is imported.
    monkeypatch.delitem(copyreg.dispatch_table, Unsendable, raising=False)

    def fail():
        raise Unsendable("a", "b")

    over = work.threading.Event()
    found, error = work.opened(work._answer(fail, (), over))
    assert found is None
    assert "Unsendable: a b cannot be sent" in str(error)
    assert work.opened(work._answer(lambda: work.threading.Lock(), (), over))[1] is not None
    assert not over.is_set()
