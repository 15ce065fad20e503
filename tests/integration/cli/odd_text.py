"""
Text that a stranger can put into a message.
"""

NASTY = "\x1b[2J\x1b]0;owned\x07 \x00 \u202egnp.exe \x9b31m \r\nSECOND LINE"
