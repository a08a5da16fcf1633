"""PyTorch on the work of a generated program, for `run.py`.

    torch_peers.py digits|cnn|dense|cyclegan|decoder BATCH [--device cpu] [--precision bfloat16] [--context 64]

Prints a line of JSON after its first step, with the number of parameters. Then, for each line `MODE SECONDS` of the
standard input, trains for so long, and prints the examples per second and the memory reserved on the GPU in MiB.
Modes are `eager`, `compiled` (`torch.compile`), and in float32 `strict`, which is eager without TF32.

Layers, losses, optimizers and clipping are those of the program. The batch is in memory and always the same.
"""

import argparse
import copy
import json
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional

# The size of GPT-2 small.
WIDTH, HEADS, BLOCKS, VOCABULARY = 768, 12, 12, 256
# Filters and residual blocks of the example `cyclegan`, and the weights of its losses.
FILTERS, RESIDUAL_BLOCKS, CYCLE, IDENTITY = 8, 2, 10.0, 5.0
WARM_UP = 3
# Seconds between two times of a measurement.
INTERVAL = 0.25


class Classifier(nn.Module):
    """From images `[batch, 1, height, width]` and labels `[batch]` to the loss."""

    clipping = 10.0

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, images, labels):
        return functional.cross_entropy(self.layers(images), labels)

    def optimizers(self, **settings):
        return [torch.optim.Adam(self.parameters(), lr=1e-3, eps=1e-7, **settings)]


def digits():
    return Classifier(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(1024, 10),
    )


def cnn():
    return Classifier(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1600, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def dense():
    return Classifier(
        nn.Flatten(),
        nn.Linear(784, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, 10),
    )


class Block(nn.Module):
    """Attention and a two-layer network, each added to what it gets the norm of."""

    def __init__(self):
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.input = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.mix = nn.Linear(WIDTH, WIDTH, bias=False)
        self.hidden_norm = nn.LayerNorm(WIDTH)
        self.hidden = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.output = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        parts = self.input(self.attention_norm(x)).split(WIDTH, dim=2)
        heads = [part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in parts]  # [batch, heads, time, size]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.mix(mixed.transpose(1, 2).flatten(2))
        return x + self.output(functional.gelu(self.hidden(self.hidden_norm(x))))


class Decoder(nn.Module):
    """From bytes and those that follow them, both `[batch, context]`, to the loss."""

    clipping = 1.0

    def __init__(self, context):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(context, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(BLOCKS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, text, following):
        x = self.tokens(text) + self.positions.weight
        logits = self.head(self.norm(self.blocks(x)))  # [batch, context, VOCABULARY]
        return functional.cross_entropy(logits.float().flatten(0, 1), following.flatten())

    def optimizers(self, **settings):
        norms = [parameter for name, parameter in self.named_parameters() if "norm" in name]
        others = [parameter for name, parameter in self.named_parameters() if "norm" not in name]
        groups = [{"params": others, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
        return [torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, **settings)]


def conv_norm(channels, size, **settings):
    """A convolution from `channels[0]` to `channels[1]`, and an instance normalisation."""
    conv = nn.Conv2d(*channels, size, bias=False, **settings)
    return [conv, nn.InstanceNorm2d(channels[1], eps=1e-3, affine=True)]


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        first, second = ([nn.ReflectionPad2d(1), *conv_norm([channels, channels], 3)] for _ in range(2))
        self.layers = nn.Sequential(*first, nn.ReLU(), *second)

    def forward(self, x):
        return x + self.layers(x)


class Up(nn.Module):
    """Doubles height and width."""

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels, channels // 2, 3, stride=2, bias=False)
        self.norm = nn.InstanceNorm2d(channels // 2, eps=1e-3, affine=True)

    def forward(self, x):
        height, width = x.shape[2:]
        return functional.relu(self.norm(self.conv(x)[:, :, : 2 * height, : 2 * width]))


def generator():
    return nn.Sequential(
        nn.ReflectionPad2d(3),
        *conv_norm([3, FILTERS], 7),
        nn.ReLU(),
        *conv_norm([FILTERS, 2 * FILTERS], 3, stride=2, padding=1),
        nn.ReLU(),
        *conv_norm([2 * FILTERS, 4 * FILTERS], 3, stride=2, padding=1),
        nn.ReLU(),
        *[Residual(4 * FILTERS) for _ in range(RESIDUAL_BLOCKS)],
        Up(4 * FILTERS),
        Up(2 * FILTERS),
        nn.ReflectionPad2d(3),
        nn.Conv2d(FILTERS, 3, 7),
        nn.Tanh(),
    )


def discriminator():
    return nn.Sequential(
        nn.Conv2d(3, FILTERS, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        *conv_norm([FILTERS, 2 * FILTERS], 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        *conv_norm([2 * FILTERS, 4 * FILTERS], 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        *conv_norm([4 * FILTERS, 8 * FILTERS], 4, padding="same"),
        nn.LeakyReLU(0.2),
        nn.Conv2d(8 * FILTERS, 1, 4, padding="same"),
    )


def frozen(network):
    """The same network with the same weights, for gradients that go through it and not to it."""
    twin = copy.deepcopy(network)
    for shared, parameter in zip(twin.parameters(), network.parameters()):
        shared.data = parameter.data
        shared.requires_grad_(False)
    return twin


class CycleGan(nn.Module):
    """From images of two kinds `[batch, 3, side, side]` to the sum of the losses of the four networks, each of
    which gets the gradients of its own loss only, as in the program."""

    clipping = None

    def __init__(self):
        super().__init__()
        self.networks = nn.ModuleList([generator(), generator(), discriminator(), discriminator()])
        # In a tuple, which does not register them as parts.
        self.judges = tuple(frozen(network) for network in self.networks[2:])

    def forward(self, x, y):
        to_y, to_x, real_x, real_y = self.networks
        fake_x, fake_y = to_x(y), to_y(x)
        of_x = self.losses(to_x, real_x, self.judges[0], x, fake_x, fake_y)
        return of_x + self.losses(to_y, real_y, self.judges[1], y, fake_y, fake_x)

    @staticmethod
    def losses(generator, discriminator, judge, real, fake, other_fake):
        """Of a generator and its discriminator."""
        adversarial = (judge(fake) - 1).square().mean()
        cycle = functional.l1_loss(generator(other_fake.detach()), real)
        identity = functional.l1_loss(generator(real), real)
        told = (discriminator(real) - 1).square().mean() + discriminator(fake.detach()).square().mean()
        return adversarial + CYCLE * cycle + IDENTITY * identity + 0.5 * told

    def optimizers(self, **settings):
        settings = {"lr": 2e-4, "betas": (0.5, 0.9), "eps": 1e-7, **settings}
        return [torch.optim.Adam(network.parameters(), **settings) for network in self.networks]


def create(work, batch, context, device):
    """The model of a work, and a batch."""
    if work == "decoder":
        text = torch.randint(VOCABULARY, (2, batch, context), device=device)
        return Decoder(context), (text[0], text[1])
    if work == "cyclegan":
        images = torch.rand(2, batch, 3, 16, 16, device=device) * 2 - 1
        return CycleGan(), (images[0], images[1])
    side = 8 if work == "digits" else 28
    labels = torch.arange(batch, device=device) % 10
    images = torch.rand(batch, 1, side, side, device=device)
    return {"digits": digits, "cnn": cnn, "dense": dense}[work](), (images, labels)


class Training:
    """Steps of a model on one batch, in a mode."""

    def __init__(self, args):
        self.device, self.precision, self.batch = args.device, args.precision, args.batch
        torch.manual_seed(0)
        with torch.device(args.device):
            self.model, self.inputs = create(args.work, args.batch, args.context, args.device)
        self.optimizers = self.model.optimizers(fused=args.device == "cuda")
        self.forwards = {"eager": self.model, "compiled": torch.compile(self.model)}
        if args.precision == "float32":
            self.forwards["strict"] = self.model

    def parameters(self):
        return sum(parameter.numel() for parameter in self.model.parameters())

    def step(self, mode):
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        is_mixed = self.precision == "bfloat16"
        with torch.autocast(self.device, torch.bfloat16, enabled=is_mixed):
            loss = self.forwards[mode](*self.inputs)
        loss.backward()
        if self.model.clipping:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.model.clipping)
        for optimizer in self.optimizers:
            optimizer.step()

    def steps(self, mode, count):
        """Seconds of `count` steps, waited for."""
        began = time.perf_counter()
        for _ in range(count):
            self.step(mode)
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    def measure(self, mode, seconds):
        self.begin(mode)
        first = self.steps(mode, 1)
        self.steps(mode, WARM_UP)
        count = min(1000, max(1, round(min(INTERVAL, seconds) / self.steps(mode, 1))))
        rates, began = [], time.perf_counter()
        while not rates or time.perf_counter() - began < seconds:
            rates.append(self.batch * count / self.steps(mode, count))
        memory = torch.cuda.max_memory_reserved() / 2**20 if self.device == "cuda" else None
        return {"rate": statistics.median(rates), "first_step": first, "memory": memory}

    def begin(self, mode):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = mode != "strict"
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=["digits", "cnn", "dense", "cyclegan", "decoder"])
    parser.add_argument("batch", type=int)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--context", type=int, default=1024)
    return parser.parse_args()


def main():
    training = Training(arguments())
    training.begin("eager")
    training.steps("eager", 1)
    answer({"parameters": training.parameters(), "modes": list(training.forwards)})
    for line in sys.stdin:
        mode, seconds = line.split()
        try:
            answer(training.measure(mode, float(seconds)))
        except Exception as error:  # such as a compiler that is missing: other modes may work
            answer({"error": f"{type(error).__name__}: {error}".splitlines()[0]})


def answer(values):
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main()
