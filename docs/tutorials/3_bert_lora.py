# %% [markdown]
# # BERT with LoRA adapters
#
# A BERT model gets small adapters by `peft`; only they are trained, with privacy, by the `Trainer` of transformers:
#
# ```
# pip install "noisette[transformers]" peft
# ```
#
# The model here is tiny and has random weights, so that the script runs in seconds without a download. Put
# `BertForSequenceClassification.from_pretrained("bert-base-uncased")` and its tokenizer in their places.

# %%
import csv
import gzip
import os
import random
import tempfile
import zlib
from pathlib import Path

import peft
import torch
from transformers import BertConfig, BertForSequenceClassification

from noisette.integrations.transformers import PrivateTrainer, PrivateTrainingArguments

# %% [markdown]
# The texts are the first 1,000 of SST-2 where `NOISETTE_DATA` has them, and sentences made here otherwise.


# %%
def sentences(most: int) -> list[tuple[str, int]]:
    path = Path(os.environ.get("NOISETTE_DATA", ""), "sst2", "train.tsv.gz")
    if path.is_file():
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            return [(row["sentence"], int(row["label"])) for _, row in zip(range(most), rows, strict=False)]
    words = [("dull", "tired", "clumsy"), ("moving", "funny", "clever")]
    chosen = random.Random(0)
    labels = [chosen.randrange(2) for _ in range(most)]
    return [(f"a {chosen.choice(words[label])} film " + "indeed " * chosen.randrange(9), label) for label in labels]


# %% [markdown]
# A tokenizer must be public. Here a fixed hash numbers the words.

# %%
records = [
    {"input_ids": [4 + zlib.crc32(word.encode()) % 1996 for word in text.split()], "label": label}
    for text, label in sentences(1000)
]

# %% [markdown]
# The adapters are two matrices of rank 4 beside each query and value projection. The classifier on top is trained too.

# %%
torch.manual_seed(0)
config = BertConfig(vocab_size=2000, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
base = BertForSequenceClassification(config)
frozen = base.bert.embeddings.word_embeddings.weight
before = frozen.clone()
adapters = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"])
model = peft.get_peft_model(base, adapters)
model.print_trainable_parameters()

# %% [markdown]
# The arguments are those of `Trainer` with a budget. The number of records is declared, and texts are padded to one of
# the declared lengths, each by itself, so that no record sees another's length.

# %%
folder = tempfile.mkdtemp()
arguments = PrivateTrainingArguments(
    output_dir=folder,
    epsilon=8.0,
    delta=1e-4,
    public_size=1000,
    max_grad_norm=1.0,
    per_device_train_batch_size=50,
    gradient_accumulation_steps=2,
    num_train_epochs=2,
    learning_rate=1e-3,
    bucket_edges=(8, 16, 32, 64),
    logging_steps=10,
    save_strategy="no",
    report_to=[],
    use_cpu=not torch.cuda.is_available(),
)
trainer = PrivateTrainer(model, arguments, train_dataset=records)
epsilon = trainer.train().metrics["epsilon"]
print(f"epsilon {epsilon:.2f}")

# %% [markdown]
# The base model is unchanged. What is saved is the adapter: a thousand numbers, put onto the same base model later.

# %%
assert torch.equal(frozen, before)
model.save_pretrained(f"{folder}/adapter")
print(sorted(file.name for file in Path(folder, "adapter").iterdir()))

# %% [markdown]
# Checkpoints, evaluation and what the trainer refuses: [Hugging Face's Trainer](../how-to/hugging-face-trainer.md).
# With a loop of your own, `run.accumulate` trains the same model; `examples/lora_llama.py` does so with a Llama.
