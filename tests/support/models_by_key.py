"""The source of models whose one argument is a dictionary, for commands that import models from a file."""

from __future__ import annotations

BY_KEY = """
class ByKey(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 3)

    def forward(self, batch):
        return self.net(dict(batch.items())["x"])

def by_key():
    return ByKey()

def with_a_dictionary():
    return ByKey(), ({"x": torch.zeros(2, 6)},)
"""
