"""
What strangers send, and what breaks: one corpus for every page and every command that shows or takes it.

    NASTY["script"]  →  the changes of a letter, as `bury` of a desk or of a shop takes them

A text stands in each place that a letter has for one. What must not be on a page or a terminal is told by `traces`.
"""

import base64
import json
import pickle

from celery_safeguards.deadletter.text import clean_text
from celery_safeguards.pipeline.failing import MAX_MESSAGE_CHARS

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)><svg onload=alert(3)>\"'></textarea><b>bold</b>"
OUTSIDE = '<img src="http://outside.invalid/x"><link rel=stylesheet href=//outside.invalid/y>'
ESCAPES = "\x1b[2J\x1b]0;owned\x07\x1b]8;;http://outside.invalid\x1b\\link\x9b31m\x90q\x9c\r\x08\x7f\nSECOND LINE"
BIDI = "\u202egnp.exe\u2066\u2069\u200f\u200b\ufeff \u05d0\u05d1\u05d2"
UNSTORABLE = "\x00 and \ud800 and \udfff"
ACTIVE = set("\x1b\x07\x08\x7f\x9b\x90\x9c\r\x00\u202e\u2066\u2069\u200f\u200b\ufeff\ud800\udfff")
"""Characters that a terminal obeys, that turn a line around, or that nothing can encode."""

DEPTH, KEYS = 10_000, 10_000
MOST_BYTES = 1_500_000
"""Of a page: a browser that hangs on one letter hides all others."""


def _of_text(text, **changes):
    """Return a letter with a text wherever it has one."""
    return {
        "task": f"desk.{text}",
        "body": json.dumps([[text], {text: text, "order_id": text}, {}]).encode(),
        "headers": {text: text, "argsrepr": text, "group": text},
        "key": text,
        "scope": text,
        "reason": text,
        "error_type": text,
        "error_message": text,
        "traceback": text,
        "host": text,
        **changes,
    }


def _with_kwargs(kwargs):
    return {"body": json.dumps([[], kwargs, {}]).encode()}


def _of_body(body, content_type="application/json", **changes):
    return {"body": body if isinstance(body, bytes) else body.encode(), "content_type": content_type, **changes}


NASTY = {
    **{name: _of_text(text) for name, text in (("script", SCRIPT + OUTSIDE), ("escapes", ESCAPES), ("bidi", BIDI))},
    "nul and surrogates": _of_text(UNSTORABLE),
    "template": _of_text("{{ 7|add:7 }}{% debug %}{0}%s%(x)s${x}\\x1b"),
    "address": _of_text("javascript:alert(4)//../../admin/?q=1#x"),
    # As a worker writes such an error down; what it was given is kept whole.
    "5 MB of error": {
        "traceback": clean_text("line of a <b>traceback\n" * 262_144, 20_000, keep="last"),
        "error_message": clean_text("m" * 5_000_000, MAX_MESSAGE_CHARS),
        "reason": clean_text("<r>" * 1_500_000, MAX_MESSAGE_CHARS),
    },
    # Kept whole by an app that raised `safeguards_max_traceback_chars`.
    "5 MB of traceback": {"traceback": "line of a <b>traceback\n" * 227_951},
    "5 MB on one line": {"traceback": "<i>" * 1_750_000},
    "5 MB of argument": _with_kwargs({"blob": "&" * 5_000_000}),
    "keys": _with_kwargs({f"key-{number}": number for number in range(KEYS)}),
    "headers": {"headers": {"x-huge": "<h>" * 500_000, **{f"x-{number}": "v" for number in range(KEYS)}}},
    "nested": _of_body('[[], {"a": ' + "[" * DEPTH + "]" * DEPTH + "}, {}]"),
    "nested objects": _of_body('[[], {"a": ' + '{"a":' * DEPTH + "1" + "}" * DEPTH + "}, {}]"),
    "nested headers": {"headers": {"x-deep": json.loads('{"a":' * 500 + "1" + "}" * 500)}},
    "integer": _of_body(f'[[{"9" * 300}], {{"order_id": {"9" * 300}}}, {{}}]'),
    "integer too long for Python": _of_body(f"[[{'9' * 6_000}], {{}}, {{}}]"),
    "no numbers": _of_body('[[NaN, Infinity, -Infinity, 1e999], {"order_id": NaN}, {}]'),
    "half a pair in JSON": _of_body('[["\\ud800"], {"order_id": "\\udc00", "\\u0000": "\\u0000"}, {}]'),
    "no UTF-8": _of_body(b"\xff\xfe[[], {}, {}]\x80"),
    "another encoding": _of_body(b"[[], {}, {}]", content_encoding="rot13"),
    "pickle": _of_body(pickle.dumps([[SCRIPT], {}, {}]), "application/x-python-serialize"),
    "msgpack": _of_body(b"\x93\x91\xa1x\x80\x80", "application/x-msgpack"),
    "yaml": _of_body("!!python/object/apply:os.system ['true']", "application/x-yaml"),
    "type": _of_body(b"[[], {}, {}]", f"text/html;{SCRIPT}{ESCAPES}"),
    "empty": _of_body(b""),
    "shape": _of_body('[{"a": 1}, [2], "x"]'),
    "envelopes": _of_body(
        '[[{"__type__": "bytes", "__value__": "no base64!"}], {"a": {"__type__": 7, "__value__": {}}}, {}]'
    ),
    "base64 of script": _of_body(json.dumps([[base64.b64encode(SCRIPT.encode()).decode()], {"order_id": SCRIPT}, {}])),
}


def traces(text, *, lines=False):
    """Return the characters in a text that must not be there; of `lines`, their ends may."""
    return {each for each in ACTIVE & set(text) if not (lines and each in "\r\n")}
