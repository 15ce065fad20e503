"""
The outside systems that the bodies on a bench call.
"""


class Outside:
    """Two outside systems: what they were asked for, and what goes wrong with the next call."""

    def __init__(self):
        self.calls = []
        self.troubles = []

    def __call__(self, name):
        self.calls.append(name)
        if self.troubles:
            trouble = self.troubles.pop(0)
            if trouble is not None:
                raise trouble
        return f"{name}-{len(self.calls)}"
