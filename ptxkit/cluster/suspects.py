"""Which jobs end the workers that execute them: they are tried alone, put aside, and given up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ptxkit.cluster.jobs import Job
from ptxkit.errors import FaultError

DEATHS = 2  # workers that may end while they execute a job, before it is put aside
BY_CHANCE = 1  # workers that ended for no job's sake, from which on jobs that were put aside are tried again
MOST_DEATHS = 4  # workers that may end while they execute a job, before it is given up though workers end by chance
EACH = 3  # further workers that ended for no job's sake, for each of which one more is allowed


class Suspects:
    """The workers, or processes of workers, that ended during a command, and the jobs that may be the reason.

    Attributes:
        aside: jobs that wait until all others are done, since several workers ended while they executed them.
        by_chance: number of workers that ended before they had a job; set by the owner.
    """

    def __init__(self) -> None:
        self.aside: list[Job] = []
        self.by_chance = 0
        self._deaths: list[list[Job]] = []  # the jobs of each worker, or process of a worker, that ended

    def ended(self, whom: str, jobs: Iterable[Job]) -> list[Job]:
        """A worker ended while it may have executed some jobs.

        Returns:
            Those to be placed again.
        """
        suspects = list(jobs)
        self._deaths.append(suspects)
        again = []
        for job in suspects:
            job.ended.append(whom)
            if len(job.ended) < DEATHS:
                again.append(job)
            elif len(job.ended) < MOST_DEATHS + self._chance() // EACH:
                self.aside.append(job)
            else:
                quarantine(job)
        return again

    def judge(self) -> list[Job]:
        """When nothing else is left: give up the jobs that were put aside, unless workers also end whatever they execute.

        Returns:
            Those to be placed again.
        """
        aside, self.aside = self.aside, []
        if self._chance() >= BY_CHANCE:
            return aside
        for job in aside:
            quarantine(job)
        return []

    def _chance(self) -> int:
        """How many workers ended without a job, or with nothing but jobs that were right afterwards."""
        return self.by_chance + sum(all(job.succeeded for job in jobs) for jobs in self._deaths)


def quarantine(job: Job) -> None:
    """Give up a job that ends workers."""
    if job.future.done():
        return
    names = list(Counter(job.ended))
    if len(names) == 1:
        ended = f"the worker {names[0]} ended {len(job.ended)} times while it executed it"
    else:
        ended = f"the workers {' and '.join(names)} ended while they executed it"
    job.future.set_exception(FaultError(f"quarantined: {ended}"))
