"""Fine-tune a Llama with LoRA adapters: only the adapters are trained, and only they are noised.

    python examples/lora_llama.py                          # a tiny one, for a try on a processor
    torchrun --nproc-per-node=2 examples/lora_llama.py     # the same run on two processes
    python examples/lora_llama.py --model 1b --length 512 --examples 20000 --batch 256

Needs ``transformers`` and ``peft``. The weights are random, unless ``--pretrained`` names a model or its folder.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import peft
import torch
import torch.distributed as dist
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


def adapted(options: argparse.Namespace, device: torch.device) -> nn.Module:
    """The model with adapters at its projections; its own weights are frozen, on a GPU in bfloat16."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    if options.pretrained:
        model = transformers.AutoModelForCausalLM.from_pretrained(options.pretrained, dtype=dtype)
    else:
        config = transformers.LlamaConfig(**SIZES[options.model], tie_word_embeddings=True, use_cache=False)
        model = transformers.LlamaForCausalLM(config).to(dtype)
    places = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    lora = peft.LoraConfig(r=options.rank, lora_alpha=2 * options.rank, lora_dropout=0.0, target_modules=places)
    adapted = peft.get_peft_model(model, lora).to(device)
    for p in adapted.parameters():
        if p.requires_grad:
            p.data = p.data.float()  # what is trained stays in single precision
    return adapted


def examples(options: argparse.Namespace, vocabulary: int) -> Tensor:
    """Texts of token numbers that count upwards from a random one, in place of yours; the same on every process."""
    first = torch.randint(0, vocabulary, (options.examples, 1), generator=torch.Generator().manual_seed(1))
    return (first + torch.arange(options.length)) % vocabulary


def loss(model: nn.Module, words: Tensor) -> Tensor:
    """The loss of one example: each word is predicted from those before it."""
    scores = model(input_ids=words[:, :-1]).logits
    return F.cross_entropy(scores.flatten(0, 1).float(), words[:, 1:].flatten())


def main() -> None:
    """Train the adapters, and say how the loss of a text moved and what it cost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", choices=SIZES, default="tiny")
    parser.add_argument("--pretrained", help="folder or name of a model, in place of random weights")
    parser.add_argument("--rank", type=int, default=4, help="of the adapters")
    parser.add_argument("--length", type=int, default=12, help="words of an example")
    parser.add_argument("--examples", type=int, default=256)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--microbatch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--epsilon", type=float, default=8.0)
    options = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if dist.is_torchelastic_launched():
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(0)
    model = adapted(options, device)
    data = examples(options, model.config.vocab_size)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.02 if options.model == "tiny" else 5e-4, weight_decay=0.0)

    def loss_of_a_text() -> float:
        with torch.no_grad():
            return float(loss(model, (torch.arange(options.length) % model.config.vocab_size)[None].to(device)))

    before = loss_of_a_text()
    with noisette.privatize(
        noisette.PerExampleClip(model, max_grad_norm=1.0),
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
        epsilon = run.epsilon(delta=0.1 / options.examples)
    if not dist.is_initialized() or dist.get_rank() == 0:
        parameters = sum(p.numel() for p in trained), sum(p.numel() for p in model.parameters())
        print(f"trained {parameters[0]:,} of {parameters[1]:,} parameters, epsilon {epsilon:.2f}")
        print(f"loss of a text: {before:.3f} before, {loss_of_a_text():.3f} after")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
