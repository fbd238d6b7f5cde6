"""What is learned: data, network, loss and score of each task, the same for every optimizer.

cifar-short   CNN, the first 10,000 training images of CIFAR-10, 5 epochs: little data, seen often
cifar-long    CNN, the first 45,056 training images once: what counts is optimisation
text          GPT over the characters of the language reference that comes with Python
digits        autoencoder of the 8 x 8 digits that come with scikit-learn, shifted by up to a pixel

Settings are chosen by the validation data, which nobody trains on; the test data are for the runs with the settings
chosen. CIFAR-10: the last 4,944 training images, and all 10,000 test images. Text: 80 %, 10 % and 10 % in order.
Digits: 1,200, 200 and 397 in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from natgrad.benchmarks.optim.models import CNN, GPT, Autoencoder

Batch = tuple[Tensor, Tensor]
VALIDATION = 4_944  # of the training images of CIFAR-10; leaves 704 batches of 64


@dataclass(frozen=True)
class Task:
    network: Callable[[], nn.Module]
    train: Batch  # inputs and targets, first dimension the examples
    validation: Batch
    test: Batch
    batch_size: int
    epochs: int
    loss: Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> a number
    score: Callable[[Tensor, Tensor], Tensor]  # one number an example, to be averaged
    higher: bool  # whether a higher score is better
    score_name: str
    augment: Callable[[Batch, torch.Generator], Batch] | None = None  # each batch, as it is trained on

    @property
    def steps(self) -> int:
        return self.epochs * (len(self.train[0]) // self.batch_size)

    def batches(self, seed: int) -> Iterator[Batch]:
        """All batches of all epochs, each epoch in an order of its own."""
        generator = torch.Generator().manual_seed(seed)
        inputs, targets = self.train
        for _ in range(self.epochs):
            order = torch.randperm(len(inputs), generator=generator).to(inputs.device)
            for chosen in order.split(self.batch_size)[: len(inputs) // self.batch_size]:
                batch = inputs[chosen], targets[chosen]
                yield self.augment(batch, generator) if self.augment else batch

    def evaluate(self, network: nn.Module, on: str) -> float:
        """The mean score on "validation" or "test"."""
        data = {"validation": self.validation, "test": self.test}[on]
        network.eval()
        with torch.no_grad():
            scores = [self.score(network(x), y) for x, y in zip(*(t.split(1000) for t in data), strict=True)]
        network.train()
        return float(torch.cat(scores).mean())


def part(batch: Batch, begin: int, end: int | None = None) -> Batch:
    return batch[0][begin:end], batch[1][begin:end]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(-1) == targets).float()


def nats(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of each example, averaged over its characters."""
    return functional.cross_entropy(outputs.transpose(1, -1), targets, reduction="none").mean(-1)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of each image, summed over its 64 pixels, in units of their variance."""
    return (outputs - targets).square().sum(-1)


def read_cifar10(folder: Path, device: torch.device) -> tuple[Batch, Batch]:
    """The official binary files: rows of a label and 3 x 32 x 32 bytes."""

    def read(*names: str) -> Batch:
        rows = np.concatenate([np.fromfile(folder / name, np.uint8).reshape(-1, 3073) for name in names])
        images = torch.from_numpy(rows[:, 1:].reshape(-1, 3, 32, 32)).to(device).float().div_(255)
        mean, std = (
            torch.tensor(t, device=device).view(3, 1, 1) for t in ((0.491, 0.482, 0.447), (0.247, 0.243, 0.262))
        )
        return (images - mean) / std, torch.from_numpy(rows[:, 0].astype(np.int64)).to(device)

    return read(*(f"data_batch_{i}.bin" for i in range(1, 6))), read("test_batch.bin")


def cifar(folder: Path, device: torch.device, images: int, epochs: int, validation: int = VALIDATION) -> Task:
    """The first `images` for training, the last `validation` of the training images kept back."""
    train, test = read_cifar10(folder, device)
    kept = len(train[0]) - validation
    if images > kept:
        raise ValueError(f"{folder} holds {kept} images for training beside those for validation, {images} are needed")
    return Task(
        network=lambda: CNN(16),
        train=part(train, 0, images),
        validation=part(train, kept),
        test=test,
        batch_size=64,
        epochs=epochs,
        loss=cross_entropy,
        score=accuracy,
        higher=True,
        score_name="accuracy",
    )


def text(device: torch.device, tokens: int = 128) -> Task:
    from pydoc_data.topics import topics

    written = "".join(topics[name] for name in sorted(topics))
    symbols = sorted(set(written))
    numbers = torch.tensor(list(map({s: i for i, s in enumerate(symbols)}.__getitem__, written)), device=device)
    whole = numbers[: (len(numbers) - 1) // tokens * tokens + 1]
    examples = whole[:-1].view(-1, tokens), whole[1:].view(-1, tokens)
    eighty, ninety = (len(examples[0]) * tenths // 10 for tenths in (8, 9))
    return Task(
        network=lambda: GPT(len(symbols), tokens),
        train=part(examples, 0, eighty),
        validation=part(examples, eighty, ninety),
        test=part(examples, ninety),
        batch_size=16,
        epochs=3,
        loss=cross_entropy,
        score=nats,
        higher=False,
        score_name="loss (nats a character)",
    )


def digits(device: torch.device) -> Task:
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError('the digits need scikit-learn: pip install "natgrad[bench]"') from error
    images = torch.from_numpy(load_digits().data).to(device).float()
    images = (images - images[:1200].mean()) / images[:1200].std()
    examples = images, images
    return Task(
        network=Autoencoder,
        train=part(examples, 0, 1200),
        validation=part(examples, 1200, 1400),
        test=part(examples, 1400),
        batch_size=50,
        epochs=40,
        loss=lambda outputs, targets: squared_error(outputs, targets).mean(),
        score=squared_error,
        higher=False,
        score_name="squared error",
        augment=shifted,
    )


def shifted(batch: Batch, generator: torch.Generator) -> Batch:
    """Images of 8 x 8, each moved by up to one pixel each way: 1,200 images as they are would be learned by heart."""
    images, _ = batch
    background = float(images.min())
    padded = functional.pad(images.view(-1, 8, 8), (1, 1, 1, 1), value=background)
    down, right = torch.randint(3, (2, len(images), 1), generator=generator).to(images.device)
    i, n = torch.arange(8, device=images.device), torch.arange(len(images), device=images.device)
    moved = padded[n[:, None, None], (down + i)[:, :, None], (right + i)[:, None, :]].flatten(1)
    return moved, moved


TASKS: dict[str, Callable[[Path, torch.device], Task]] = {  # of CIFAR-10's folder and the device
    "cifar-short": lambda folder, device: cifar(folder, device, images=10_000, epochs=5),
    "cifar-long": lambda folder, device: cifar(folder, device, images=45_056, epochs=1),
    "text": lambda _, device: text(device),
    "digits": lambda _, device: digits(device),
}
