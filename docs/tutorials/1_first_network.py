# %% [markdown]
# # Digits with a private network
#
# A small network learns handwritten digits. The guarantee is epsilon 3 at delta 1e-4. scikit-learn's 8 by 8 digits are
# used, because they need no download; `noisette train --data mnist --epsilon 3` trains on MNIST.

# %%
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

import noisette

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images, dtype=torch.float32) / 16
labels = torch.tensor(labels)
training, test = slice(0, 1500), slice(1500, None)

# %% [markdown]
# The model is any `torch.nn.Module`. `PerExampleClip` bounds the influence of each example on a step.

# %%
torch.manual_seed(0)
hidden, output = torch.nn.Linear(64, 64), torch.nn.Linear(64, 10)
model = torch.nn.Sequential(hidden, torch.nn.Tanh(), output)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
clip = noisette.PerExampleClip(model, max_grad_norm=1.0)

# %% [markdown]
# `privatize` finds the noise for the budget. The number of records is a declaration: 1,500 times the sampling rate 0.1
# gives the expected batch size.

# %%
run = noisette.privatize(
    clip,
    optimizer,
    (images[training], labels[training]),
    sampling_rate=0.1,
    expected_batch_size=150,
    steps=100,
    epsilon=3.0,
    delta=1e-4,
)
print(f"noise multiplier {run.noise_multiplier:.2f}")

# %% [markdown]
# The loss is that of one example. It is vectorised over the batch, so that no example can see another.


# %%
def loss(model, x, y):
    return F.cross_entropy(model(x), y)


for batch in run.batches():
    for x, y in batch.microbatches(256):
        run.accumulate(loss, x, y)
    optimizer.step()
    optimizer.zero_grad()

# %% [markdown]
# The accuracy on the test digits, which are not part of the guarantee, and the privacy that was spent.

# %%
accuracy = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
epsilon = run.epsilon(delta=1e-4)
print(f"accuracy {accuracy:.1%}, epsilon {epsilon:.2f}")
