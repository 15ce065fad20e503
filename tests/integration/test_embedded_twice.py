"""
One process that runs a worker of its app, ends it and runs another, as the fixtures of a project's tests do.
"""

from tests.support.modules import seen_by


def test_second_worker_of_a_process_renews_by_its_own_loop_and_pool(redis_url, namespace):
    """By the first one's, it would renew for ever while its loop stands still, and end no child whose claim lapses."""
    seen = seen_by("tests.integration.embedded_worker", redis_url, namespace)

    assert seen == {"renewed": [True, True], "keepers": 4}
