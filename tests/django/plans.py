"""How a database says it would answer what a call asks of it."""

import re


def prefer_indexes(wrapper):
    """Have a few rows read by an index, as a million are: what is left then are the plans that do it by an index."""
    # For three rows a bitmap or a sort costs as much as an index in their order; where there is none, it is seen.
    off = ("seqscan", "bitmapscan", "sort", "incremental_sort")
    settings = "; ".join(f"SET enable_{each} = off" for each in off)
    with wrapper.cursor() as cursor:
        cursor.execute(settings if wrapper.vendor == "postgresql" else "ANALYZE")


def explained(wrapper, call):
    """Return what a call returns, and the plan of each query that it makes by a connection."""
    asked = []

    def note(execute, sql, params, many, context):
        if sql.startswith(("SELECT", "WITH")):
            asked.append((sql, params))
        return execute(sql, params, many, context)

    with wrapper.execute_wrapper(note):
        found = call()
    return found, [plan_of(wrapper, sql, params) for sql, params in asked]


def plan_of(wrapper, sql, params):
    """Return the plan of a query, as text."""
    how = "" if wrapper.vendor == "postgresql" else "QUERY PLAN"
    if wrapper.vendor == "postgresql" and sql.startswith("WITH"):
        # What the steps of a recursion read is told once they have been made.
        how = "ANALYZE"
    with wrapper.cursor() as cursor:
        cursor.execute(f"EXPLAIN {how} {sql}", params)
        return "\n".join(str(row[-1]) for row in cursor.fetchall())


def sorts_or_scans(plan):
    """Return what of a plan takes longer the more rows there are."""
    return [word for word in ("Sort", "Seq Scan", "Bitmap", "TEMP B-TREE", "SCAN ") if word in plan]


def conditions(plan):
    """Return the columns by whose values an index is entered."""
    # PostgreSQL: Index Cond: (((task)::text = 'x'::text) AND (at <= 5)); SQLite: USING INDEX i (task=? AND at<?)
    lines = re.findall(r"Index Cond: (.*)|USING (?:COVERING )?INDEX \w+ \(([^)]*)\)", plan)
    return {name for line in lines for name in re.findall(r"\(*\b(\w+)\)?(?:::text)? ?[=<>~]", "".join(line))}
