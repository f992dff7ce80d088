"""Scripts in the shape of Opacus' own examples: they run but for the import and the number of records."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import noisette
from noisette.integrations.opacus import DPLSTM, BatchMemoryManager, PrivacyEngine

pytestmark = pytest.mark.filterwarnings("ignore:Converting a tensor")  # float(loss), as the scripts have it
N = 40
PRIVATE: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "public_size": N}
BUDGET: dict[str, Any] = {
    **{"target_epsilon": 8.0, "target_delta": 1e-3, "epochs": 2, "max_grad_norm": 1.2, "public_size": N}
}


class SampleConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 8, 2, padding=3)
        self.conv2 = nn.Conv2d(4, 8, 4, 2)
        self.fc = nn.Linear(8 * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2, 1)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2, 1)
        return self.fc(x.view(-1, 8 * 4 * 4))

    def name(self) -> str:
        return "SampleConvNet"


def images(channels: int = 1, size: int = 28) -> TensorDataset:
    return TensorDataset(torch.randn(N, channels, size, size), torch.randint(0, 10, (N,)))


def test_mnist() -> None:
    train_loader: Any = DataLoader(images(), batch_size=10, num_workers=0, pin_memory=True)
    test_loader: Any = DataLoader(images(), batch_size=20, shuffle=True)
    model: Any = SampleConvNet().to("cpu")
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0)
    privacy_engine = PrivacyEngine(secure_mode=False)
    model, optimizer, train_loader = privacy_engine.make_private(
        module=model, optimizer=optimizer, data_loader=train_loader, **PRIVATE
    )
    criterion = nn.CrossEntropyLoss()
    for _epoch in range(2):
        model.train()
        losses = []
        for _batch_idx, (data, target) in enumerate(train_loader):
            optimizer.zero_grad()
            loss = criterion(model(data), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert np.isfinite(losses).all()
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in test_loader:
            pred = model(data).argmax(dim=1, keepdim=True)
            correct += pred.eq(target.view_as(pred)).sum().item()
    assert 0 <= correct <= len(test_loader.dataset)
    assert privacy_engine.get_epsilon(delta=1e-3) > 0
    assert model.name() == "SampleConvNet"  # attributes of the model are reached through its wrapper
    assert model.state_dict().keys() == {f"_module.{name}" for name in SampleConvNet().state_dict()}


def test_cifar_10_with_a_batch_memory_manager() -> None:
    model: Any = nn.Sequential(
        *(nn.Conv2d(3, 4, 3, 2, 1), nn.GroupNorm(2, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(4, 10),
    )
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    engine = PrivacyEngine(secure_mode=False)
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model, optimizer=optimizer, data_loader=DataLoader(images(3, 32), batch_size=20), **BUDGET
    )
    assert optimizer.max_grad_norm == 1.2
    assert optimizer.noise_multiplier > 0
    for _epoch in range(2):
        model.train()
        top1 = []
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=6, optimizer=optimizer) as pieces:
            for images_, target in pieces:
                optimizer.zero_grad()
                output = model(images_)
                preds = np.argmax(output.detach().cpu().numpy(), axis=1)
                top1.append((preds == target.numpy()).mean())
                F.cross_entropy(output, target).backward()
                optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001)
    assert engine.accountant.get_epsilon(delta=1e-3) <= 8


class CharNNClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 8)
        self.lstm = DPLSTM(8, 8, num_layers=1, bidirectional=False, batch_first=True)
        self.out_layer = nn.Linear(8, 18)

    def forward(self, x: Tensor, hidden: Any = None) -> Tensor:
        x, _ = self.lstm(self.embedding(x), hidden)
        return self.out_layer(x[:, -1, :])


def padded_collate(batch: list[Any], padding_idx: int = 0) -> tuple[Tensor, Tensor]:
    x = nn.utils.rnn.pad_sequence([each[0] for each in batch], batch_first=True, padding_value=padding_idx)
    return x, torch.stack([each[1] for each in batch]).long()


def test_char_lstm() -> None:
    names = [(torch.randint(1, 128, (2 + k % 9,)), torch.tensor(k % 18)) for k in range(N)]
    padded: Any = noisette.PaddedBuckets(names, (5, 10))
    model: Any = CharNNClassifier()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=2.0)
    engine = PrivacyEngine(secure_mode=False)
    loader: Any = DataLoader(padded, batch_size=10, pin_memory=True, collate_fn=padded_collate)
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model, optimizer=optimizer, data_loader=loader, **BUDGET
    )
    criterion, accuracies = nn.CrossEntropyLoss(), []
    for _epoch in range(2):
        for x, y in loader:
            logits = model(x)
            loss = criterion(logits, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            accuracies.append(float(logits.argmax(1).eq(y).float().mean()))
            assert float(loss) > 0
    assert accuracies
    assert engine.get_epsilon(delta=1e-3) <= 8


def test_dcgan() -> None:
    generator = nn.Sequential(
        nn.ConvTranspose2d(4, 8, 4, 1, 0, bias=False), nn.GroupNorm(2, 8), nn.ReLU(True), nn.Flatten(2)
    )
    to_image = nn.Linear(16, 16)
    discriminator: Any = nn.Sequential(
        *(nn.Conv2d(8, 8, 4, 1, 0, bias=False), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(8, 1, 1, bias=False)),
        *(nn.Sigmoid(), nn.Flatten(0)),
    )
    criterion = nn.BCELoss()
    data: Any = DataLoader(TensorDataset(torch.randn(N, 8, 4, 4)), batch_size=10)
    optimizer_d: Any = torch.optim.Adam(discriminator.parameters(), lr=1e-2, betas=(0.5, 0.999))
    of_generator = [*generator.parameters(), *to_image.parameters()]
    optimizer_g, before = torch.optim.Adam(of_generator, lr=1e-2), [p.detach().clone() for p in of_generator]
    engine = PrivacyEngine(secure_mode=False)
    discriminator, optimizer_d, data = engine.make_private(
        module=discriminator, optimizer=optimizer_d, data_loader=data, **PRIVATE
    )
    for (real,) in data:
        optimizer_d.zero_grad(set_to_none=True)
        size = real.size(0)
        fake = to_image(generator(torch.randn(size, 4, 1, 1))).view(size, 8, 4, 4)
        on_real = criterion(discriminator(real), torch.full((size,), 1.0))
        on_fake = criterion(discriminator(fake.detach()), torch.full((size,), 0.0))
        (on_real + on_fake).backward()
        optimizer_d.step()
        optimizer_d.zero_grad(set_to_none=True)
        optimizer_g.zero_grad()
        released = criterion(discriminator._module(fake), torch.full((size,), 1.0))
        [truth] = torch.autograd.grad(released, of_generator[:1], retain_graph=True)
        criterion(discriminator(fake), torch.full((size,), 1.0)).backward()
        torch.testing.assert_close(of_generator[0].grad, truth)
        assert all(p.grad is None for p in discriminator.parameters())
        optimizer_g.step()
    assert all(not torch.equal(old, p) for old, p in zip(before, of_generator, strict=True))
    assert engine.accountant.get_epsilon(delta=1e-3) > 0
    with pytest.raises(noisette.PrivacyError, match="requires gradients"):
        discriminator(next(iter(data))[0].requires_grad_())
