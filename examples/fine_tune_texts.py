"""Fine-tune a model that writes text, with adapters and a privacy budget, and see what it has learned by heart.

    pip install "noisette[transformers]" peft
    python examples/fine_tune_texts.py letters.txt held_out.txt --model FOLDER --records 20000 --epsilon 8

The files have one text in each line; those of the second are taken to be public. ``FOLDER`` was written by
``save_pretrained`` and has the tokenizer. A made-up secret, a number of six digits, is put among the training texts so
often as ``--copies`` says. Its exposure (Carlini et al. 2019) is how many bits an attacker saves who guesses it by the
model: log2 of the number of candidates over its rank among them; 1 or so is chance, and 10 the most here.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
from pathlib import Path
from typing import Any

import peft
import torch
import transformers

from noisette.integrations.transformers import PrivateTrainer, PrivateTrainingArguments

CANDIDATES = 1024


def losses(model: Any, tokenizer: Any, texts: list[str]) -> list[tuple[float, int]]:
    """The sum of the losses of the tokens of each text, and their number."""
    found = []
    with torch.no_grad():
        for text in texts:
            ids = tokenizer(text, return_tensors="pt", truncation=True, max_length=256).input_ids.to(model.device)
            if (words := ids.shape[1] - 1) > 0:
                found.append((float(model(input_ids=ids, labels=ids).loss) * words, words))
    return found


def report(model: Any, tokenizer: Any, held_out: list[str], secrets: list[str], prompt: str) -> str:
    """Perplexity of public texts, exposure of the first secret, and what the model writes."""
    model.eval()
    sums, words = zip(*losses(model, tokenizer, held_out), strict=True)
    first, *others = [loss for loss, _ in losses(model, tokenizer, secrets)]
    exposure = math.log2(len(secrets)) - math.log2(1 + sum(other <= first for other in others))
    asked = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False).to(model.device)
    written = tokenizer.decode(model.generate(**asked, max_new_tokens=20, do_sample=False)[0])
    return f"perplexity {math.exp(sum(sums) / sum(words)):.1f}, exposure {exposure:.1f} bits, writes: {written}"


def main() -> None:
    """Train, and print the report before and after."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("train", type=Path)
    parser.add_argument("held_out", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--records", type=int, required=True, help="declared number of training texts")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--batch", type=int, default=256, help="expected texts of a step")
    parser.add_argument("--microbatch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--rank", type=int, default=8, help="of the adapters")
    parser.add_argument("--copies", type=int, default=1, help="of the secret among the training texts")
    parser.add_argument("--prompt", default="The")
    options = parser.parse_args()

    torch.manual_seed(0)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(options.model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    adapters = peft.LoraConfig(r=options.rank, lora_alpha=2 * options.rank, target_modules="all-linear")
    model = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(options.model), adapters)
    numbers = random.Random(0).sample(range(100_000, 1_000_000), CANDIDATES)
    secrets = [f"The secret number is {' '.join(str(number))}" for number in numbers]
    texts = options.train.read_text(encoding="utf-8").splitlines() + secrets[:1] * options.copies
    held_out = options.held_out.read_text(encoding="utf-8").splitlines()
    print("before:", report(model, tokenizer, held_out, secrets, options.prompt))
    tokens = [tokenizer(text, truncation=True, max_length=256)["input_ids"] for text in texts]
    with tempfile.TemporaryDirectory() as output:
        arguments = PrivateTrainingArguments(
            output_dir=output,
            epsilon=options.epsilon,
            delta=0.1 / options.records,
            public_size=options.records,
            max_grad_norm=1.0,
            per_device_train_batch_size=options.microbatch,
            gradient_accumulation_steps=max(1, options.batch // options.microbatch),
            num_train_epochs=options.epochs,
            learning_rate=options.lr,
            weight_decay=0.0,
            save_strategy="no",
            report_to=[],
            use_cpu=not torch.cuda.is_available(),
        )
        rows = [{"input_ids": ids, "labels": ids} for ids in tokens]
        trainer = PrivateTrainer(model, arguments, train_dataset=rows, processing_class=tokenizer)
        spent = trainer.train().metrics["epsilon"]
    print("after: ", report(trainer.model, tokenizer, held_out, secrets, options.prompt))
    print(f"epsilon {spent:.2f} at delta {0.1 / options.records:.1e}")


if __name__ == "__main__":
    main()
