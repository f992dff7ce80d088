"""Fine-tune every weight of a Llama, with the memory of plain training.

    python examples/full_fine_tuning.py                    # a tiny one, for a try on a processor
    python examples/full_fine_tuning.py --model 1b --length 1024 --examples 20000 --batch 256 --microbatch 8

The engine ``ReweightGP`` keeps nothing of an example between its norm and its sum, so the activation checkpoints of the
model save as much memory as they do in plain training. Needs ``transformers``. The weights are random here.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

import noisette

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 64,
    },
    "1b": {  # 1.24 billion parameters
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "rope_theta": 500_000.0,
    },
}


def checkpointed(name: str, device: torch.device) -> nn.Module:
    """The model in single precision; each of its layers keeps its input alone, and is computed again where needed."""
    config = transformers.LlamaConfig(**SIZES[name], tie_word_embeddings=True, use_cache=False)
    model = transformers.LlamaForCausalLM(config).to(device).train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def loss(model: nn.Module, words: Tensor) -> Tensor:
    """The loss of one text, (1, length): every word is predicted from those before it."""
    scores = model(input_ids=words[:, :-1]).logits
    return F.cross_entropy(scores.transpose(1, 2).float(), words[:, 1:])


def main() -> None:
    """Train, and say how the loss of a text moved, what it cost, and the memory that it took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", choices=SIZES, default="tiny")
    parser.add_argument("--length", type=int, default=12, help="words of an example")
    parser.add_argument("--examples", type=int, default=256)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--microbatch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--epsilon", type=float, default=8.0)
    options = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = checkpointed(options.model, device)
    vocabulary = SIZES[options.model]["vocab_size"]
    data = (torch.randint(0, vocabulary, (options.examples, 1)) + torch.arange(options.length)) % vocabulary
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3 if options.model == "tiny" else 2e-5, weight_decay=0.0)

    def loss_of_a_text() -> float:
        with torch.no_grad():
            return float(loss(model, (torch.arange(options.length) % vocabulary)[None].to(device)))

    before = loss_of_a_text()
    with noisette.privatize(
        noisette.PerExampleClip(model, max_grad_norm=1.0, engine=noisette.engines.ReweightGP()),
        optimizer,
        data,
        public_size=options.examples,
        expected_batch_size=options.batch,
        steps=options.steps,
        epsilon=options.epsilon,
        delta=0.1 / options.examples,
    ) as run:
        for batch in run.batches():
            for words in batch.microbatches(options.microbatch):
                with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                    run.accumulate(loss, words.to(device))
            optimizer.step()
            optimizer.zero_grad()
        print(f"trained {sum(p.numel() for p in model.parameters()):,} parameters", end=", ")
        print(f"epsilon {run.epsilon(delta=0.1 / options.examples):.2f}")
    print(f"loss of a text: {before:.3f} before, {loss_of_a_text():.3f} after")
    if device.type == "cuda":
        print(f"at most {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB of the GPU")


if __name__ == "__main__":
    main()
