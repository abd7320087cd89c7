"""Which jobs end the workers that execute them: they are tried alone, put aside, and given up."""

from __future__ import annotations

from collections.abc import Iterable

from ptxkit.cluster.seats import Job
from ptxkit.errors import FaultError

DEATHS = 2  # workers that may end while they execute a job, before it is put aside
BY_CHANCE = 3  # workers that ended for no job's sake, from which on jobs that were put aside are tried again
MOST_DEATHS = 4  # workers that may end while they execute a job, before it is given up though workers end by chance
EACH = 3  # further workers that ended for no job's sake, for each of which one more is allowed


class Suspects:
    """The workers, or processes of workers, that ended during a command, and the jobs that may be the reason."""

    def __init__(self) -> None:
        self.aside: list[Job] = []  # jobs with so many dead workers that they wait until all others are done
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
            elif len(job.ended) < MOST_DEATHS + self._by_chance() // EACH:
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
        if self._by_chance() >= BY_CHANCE:
            return aside
        for job in aside:
            quarantine(job)
        return []

    def _by_chance(self) -> int:
        """How many workers ended with nothing but jobs that were right afterwards."""
        return sum(all(job.succeeded for job in jobs) for jobs in self._deaths)


def quarantine(job: Job) -> None:
    """Give up a job that ends workers."""
    if not job.future.done():
        workers = " and ".join(job.ended)
        job.future.set_exception(FaultError(f"quarantined: the workers {workers} ended while they executed it"))
