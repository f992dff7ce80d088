# %% [markdown]
# # A table of your own, by the command line
#
# A CSV file becomes a trained model with a guarantee, by two commands. What is public about the columns, such as bounds
# and categories, is declared; nothing is learnt from the rows without noise.

# %%
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

# %% [markdown]
# First a table, in a new folder: 4,000 patients, some of whose ages are missing. Put your own file in its place.

# %%
os.chdir(tempfile.mkdtemp())
random = np.random.default_rng(0)
ages, wards = random.integers(0, 100, 4000), random.choice(["A", "B", "C"], 4000)
odds = (ages - 50) / 10 + 2.0 * (wards == "C") + random.normal(size=4000)
rows = [
    f"{'' if random.random() < 0.05 else age},{ward},{'yes' if ill > 0 else 'no'}"
    for age, ward, ill in zip(ages, wards, odds, strict=True)
]
Path("patients.csv").write_text("\n".join(["age,ward,ill", *rows]) + "\n")
print("\n".join(rows[:3]))

# %% [markdown]
# Type the commands below into a terminal; here a function runs them.


# %%
def terminal(command: str) -> None:
    subprocess.run([sys.executable, "-m", *shlex.split(command)], check=True)


# %% [markdown]
# The schema states what each column may hold. The command reads the names of the columns, and no row.

# %%
terminal(
    "noisette schema patients.csv --label ill --classes no,yes --size 4000 --number age=0,110 --category ward=A,B,C"
)
print(Path("schema.toml").read_text())

# %% [markdown]
# The file has a rule for missing values of each column, such as `missing = "indicator"`; edit it where another rule is
# right. Then train, with a random fifth of the rows held out to test with. The declared size is that of the whole
# table, from public knowledge.

# %%
terminal(
    "noisette train --data patients.csv --columns schema.toml --holdout 0.2 --epsilon 3 --delta 1e-4 --out trained"
)

# %% [markdown]
# `trained/report.html` shows the results; `trained/privacy.txt` states the guarantee. The figures of the held-out rows
# are exact, so the guarantee does not cover them.

# %%
result = json.loads(Path("trained/run.json").read_text())
print(Path("trained/privacy.txt").read_text()[:600])

# %% [markdown]
# New rows are predicted with the same preparation. The label column may be absent.

# %%
Path("new.csv").write_text("age,ward\n20,A\n90,C\n,B\n")
terminal("noisette predict trained new.csv")

# %% [markdown]
# All rules for columns, texts and numbers are in [the command line](../command-line.md#data); rates and batch sizes are
# chosen without a search, as [choosing settings](../how-to/choose-settings.md) explains.
