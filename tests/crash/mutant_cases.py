"""Fixed courses of events: a commit dies, somebody meddles with the tree or with what it left, recovery is asked.

Each stands for a check of recovery that nothing else would miss. See `steps` and `case_steps`.
"""

from __future__ import annotations

from tests.crash import cases_of_commits, cases_of_debris, cases_of_links, cases_of_others, cases_of_versions

CASES = {
    **cases_of_commits.CASES,
    **cases_of_others.CASES,
    **cases_of_debris.CASES,
    **cases_of_versions.CASES,
    **cases_of_links.CASES,
}
