"""The examples run, also on two ranks, and so does the script of the page on several GPUs."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from noisette import Ledger
from page_code import ROOT, blocks

EXAMPLES = ROOT / "examples"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def run_here(script: Path, *arguments: str) -> None:
    """Run a script in this process, which has imported everything already."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(script), *arguments])
        runpy.run_path(str(script), run_name="__main__")


def on_two_ranks(script: Path, *arguments: str, folder: Path) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NOISETTE_COMPILE": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [*TORCHRUN, str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def releases(ledger: Path) -> int:
    return sum(Ledger.read(ledger).events.values())


@pytest.mark.slow
def test_a_run_of_two_ranks_is_finished_by_one(tmp_path, capsys):
    script = EXAMPLES / "train_on_ranks.py"
    printed = on_two_ranks(script, "--out", "run", "--wrap", "--steps", "24", "--stop-after", "13", folder=tmp_path)
    assert re.fullmatch(r"steps 13, epsilon \d\.\d\d, accuracy \d\.\d\d, weights \d+\.\d+\n", printed)
    run_here(script, "--out", str(tmp_path / "run"), "--steps", "24")
    said = capsys.readouterr().out
    found = re.match(r"steps (\d+), epsilon (\d\.\d\d), accuracy (\d\.\d\d)", said)
    assert found, said
    steps, epsilon, accuracy = int(found[1]), float(found[2]), float(found[3])
    assert steps == 24 - 3, "steps 11 to 13 were after the checkpoint"
    assert epsilon <= 3.0
    assert accuracy > 0.5
    assert releases(tmp_path / "run" / "ledger.jsonl") == 24


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["lora_llama", pytest.param("full_fine_tuning", marks=pytest.mark.slow)])
def test_adapters_or_all_weights_of_a_llama(name, capsys):
    run_here(EXAMPLES / f"{name}.py", "--steps", "8")
    said = capsys.readouterr().out
    epsilon = re.search(r"epsilon (\d\.\d\d)", said)
    loss = re.search(r"loss of a text: (\d\.\d+) before, (\d\.\d+) after", said)
    assert epsilon, said
    assert loss, said
    assert 0 < float(epsilon[1]) <= 8.0
    assert float(loss[2]) < float(loss[1])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", [(), ("--lora", "2", "--described", "dull;a dull film", "moving")])
def test_a_sentence_encoder_is_fine_tuned(how, tmp_path, capsys):
    import transformers

    words = ["dull", "moving", "a", "film"]
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    transformers.BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    small = {"vocab_size": 9, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    transformers.BertModel(
        transformers.BertConfig(**small, intermediate_size=16, initializer_range=0.5)
    ).save_pretrained(tmp_path)
    rows = [f"{label}\ta {words[label]} film" for label in (0, 1) * 100]
    (tmp_path / "rows.tsv").write_text("\n".join(["label\tsentence", *rows]))
    files = [str(tmp_path / "rows.tsv")] * 2
    batches = ("--batch", "64", "--microbatch", "64", "--lr", "0.02", "--epochs", "8")
    schedule = ("--records", "200", "--epsilon", "8", *batches)
    run_here(EXAMPLES / "fine_tune_sentences.py", *files, *schedule, "--encoder", str(tmp_path), *how)
    assert re.search(
        r"weights trained, epsilon [78]\.\d\d at delta 5.0e-04, test accuracy ([789]\d|100)", capsys.readouterr().out
    )


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_writes_learns_texts_and_is_asked_for_a_secret(tmp_path, capsys):
    from small_llama import model, tokenizer

    model().save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    (tmp_path / "texts").write_text("The number is 7\n" * 100)
    files, schedule = [str(tmp_path / "texts")] * 2, ("--epochs", "8", "--batch", "50", "--lr", "0.05")
    run_here(EXAMPLES / "fine_tune_texts.py", *files, "--model", str(tmp_path), "--records", "101", *schedule)
    line = r"perplexity (\d+\.\d), exposure (\d+\.\d) bits, writes: The "
    (before, _), (after, exposure) = re.findall(line, capsys.readouterr().out)
    assert float(after) < float(before)
    assert float(exposure) < 10


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_script_of_the_page_prints_what_it_states_on_one_and_on_two_ranks(ranks, tmp_path, capsys, monkeypatch):
    [block] = blocks("docs/how-to/several-gpus.md")
    [stated] = re.findall(r"print\(.*\)  # (.*)", block)
    script = tmp_path / "train.py"
    script.write_text(block)
    monkeypatch.chdir(tmp_path)
    if ranks == 1:
        run_here(script)
    printed = capsys.readouterr().out if ranks == 1 else on_two_ranks(script, folder=tmp_path)
    assert printed == f"{stated}\n"
    assert releases(tmp_path / "ledger.jsonl") == 20
