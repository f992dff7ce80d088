# %% [markdown]
# # Training without clipping, with certified radii
#
# If no layer of a network can increase a distance, the gradient of every example has a bound that follows from the
# layers. Nothing is clipped then, and each prediction comes with a radius within which no change of the input can alter
# it. [Training without clipping](../clipless.md) explains why.

# %%
import torch
from sklearn.datasets import load_digits
from torch import nn

import noisette
from noisette.nn.lipschitz import GroupSort2, SpectralLinear, SphereInput, TauCrossEntropy

images, labels = load_digits(return_X_y=True)
images, labels = torch.tensor(images, dtype=torch.float32) / 16 - 0.5, torch.tensor(labels)
training, test = slice(0, 1500), slice(1500, None)

# %% [markdown]
# The layers are those of `noisette.nn.lipschitz`. `SphereInput` gives every image the same norm. A larger `tau` of the
# loss favours accuracy, a smaller one the radii.

# %%
torch.manual_seed(0)
model = nn.Sequential(SphereInput(x0=1.0), SpectralLinear(64, 64), GroupSort2(), SpectralLinear(64, 10))
loss = TauCrossEntropy(tau=8.0)

# %% [markdown]
# `LipschitzBound` takes the place of `PerExampleClip`. What it bounds is known before the first record is read.

# %%
bound = noisette.LipschitzBound(model, loss=loss, input_shape=(64,), logit_clipping=noisette.FlatClipping(0.1))
optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
run = noisette.privatize(
    bound,
    optimizer,
    (images[training], labels[training]),
    sampling_rate=0.4,
    expected_batch_size=600,
    steps=60,
    epsilon=3.0,
    delta=1e-4,
)

# %% [markdown]
# The loop is that of any private training; after the noise, each step also brings the weights back to norm 1.

# %%
for batch in run.batches():
    for x, y in batch.microbatches("auto"):
        run.accumulate(lambda model, x, y: loss(model(x), y), x, y)
    optimizer.step()
    optimizer.zero_grad()

# %% [markdown]
# `certify` gives a radius for each image. The certified accuracy at a radius counts the images that are classified
# correctly, and stay so under every change of at most that Euclidean norm. Pixels are between -0.5 and 0.5 here.

# %%
plain, certified = noisette.certified_accuracy(model, images[test], labels[test], radii=[0.0, 0.25])
radii = noisette.certify(model, images[test])
epsilon = run.epsilon(delta=1e-4)
print(f"accuracy {plain:.1%}; certified within 0.25: {certified:.1%}; epsilon {epsilon:.2f}")

# %% [markdown]
# The certificate can be tried: a change of nearly the certified size, in the direction that lowers the lead of the
# predicted class the fastest, alters no prediction; one three times as large alters many.

# %%
attacked = images[test].clone().requires_grad_()
first, second = model(attacked).topk(2, dim=1).values.unbind(1)
(direction,) = torch.autograd.grad((first - second).sum(), attacked)
change = -radii.float()[:, None] * nn.functional.normalize(direction, dim=1)
predicted = model(attacked).argmax(1)
altered = {size: int((model(attacked + size * change).argmax(1) != predicted).sum()) for size in (0.99, 3.0)}
print(f"of {len(radii)} predictions, altered by changes of 0.99 and 3 radii: {altered}")
