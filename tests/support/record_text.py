"""A record as the Redis scripts write it: they are the only writers, so the package itself has no need of this."""

HEAD_NUMBERS = ("fence", "rev", "lease_until_us", "lost_us", "series_began_us", "not_before_us", "doubt_us")


def text_of(record):
    """Return the head line and the body of a record."""
    head = [record.format, record.state, record.owner or "-", *(getattr(record, name) for name in HEAD_NUMBERS)]
    return " ".join(map(str, [*head, int(record.asking)])) + f"\n{record.body()}"
