"""Data of the user's own on the command line: schema, training, report and predictions."""

import csv
import json
import random
import re
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pandas
import pytest
from PIL import Image

from command_line import facts, refusal, succeeded, words
from command_line import noisette as run
from noisette.cli.train import Watch

ROWS = 400
SCHEMA = (
    *("--label", "paid", "--classes", "no,yes", "--size", 400, "--number", "hours=0,60"),
    *("--number", "age=0,100", "--category", "job=cook,smith", "--ignore", "id"),
)
QUICK = ("--epochs", 3, "--delta", 1e-4)


def write_people(path: Path) -> Path:
    """A table with missing values, an undeclared category, a number outside its bounds and quoted separators."""
    draw = random.Random(0)
    with path.open("w", encoding="utf-8-sig", newline="") as stream:
        lines = csv.writer(stream, delimiter=";")
        lines.writerow(["id", "age", "job", "paid", "hours"])
        for k in range(ROWS):
            age, job = draw.randint(-5, 120), draw.choice(["cook", "Smith", "", "spy; retired"])
            paid = "YES" if age > 50 else "no"
            lines.writerow([f"CANARY{k}", "" if k % 9 == 0 else age, job, paid, age / 2])
    return path


@pytest.fixture
def people(_here):
    return write_people(Path("People.CSV"))


@pytest.fixture
def schema(people):
    succeeded(run("schema", people, *SCHEMA))
    return Path("schema.toml")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a finished run on the table, with records held out; it is not changed."""
    folder = tmp_path_factory.mktemp("people")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        people = write_people(Path("People.CSV"))
        succeeded(run("schema", people, *SCHEMA))
        shown = run("train", "--data", people, "--columns", "schema.toml", "--holdout", 0.25, *QUICK, "--out", "run")
        assert shown.exit_code == 0, shown.output
        assert all(name in shown.output for name in ("test accuracy", "base rate", "macro accuracy", "AUC"))
    return folder


def test_from_a_schema_to_predictions_of_new_rows(trained):
    done = facts(trained / "run")
    assert (done["declared_size"], done["recipe"]["training"]["batch_size"]) == (300, 90)
    assert done["features"] == ["age", "job", "hours"]
    counts = np.array(done["test"]["confusion"])
    assert abs(counts.sum() - 100) < 50
    assert done["test_accuracy"] == done["test"]["accuracy"] == pytest.approx(np.trace(counts) / counts.sum())
    statement = words(trained / "run" / "privacy.txt")
    assert "held out with probability 0.25" in statement
    assert "which stays private" not in statement
    assert "Inputs: 8, made from 3 columns by the declaration in run.json" in statement
    page = (trained / "run" / "report.html").read_text()
    assert "about 25.0 % of all" in page
    assert "public test examples" not in page
    for file in (trained / "run").iterdir():
        assert b"CANARY" not in file.read_bytes()
    Path("new.csv").write_text("hours,job,age\n10,SMITH,20\n,,\n")
    header, *rows = csv.reader(succeeded(run("predict", trained / "run", "new.csv")).stdout.splitlines())
    assert (header, len(rows)) == (["predicted paid", "probability of no", "probability of yes"], 2)
    for name, *shares in rows:
        assert sum(map(float, shares)) == pytest.approx(1, abs=1e-5)
        assert name == ["no", "yes"][np.argmax(list(map(float, shares)))]


def test_predictions_of_the_rows_tested_on_are_those_of_the_report(people, schema):
    shutil.copy(people, "test.csv")
    frame = pandas.read_csv(people, sep=";")
    frame.to_json("typed.jsonl", orient="records", lines=True)
    shown = run("train", "--data", "typed.jsonl", "--columns", schema, "--test", "test.csv", *QUICK, "--out", "runs/a")
    assert shown.exit_code == 0, shown.output
    succeeded(run("predict", "runs/a", people, "--out", "p.csv"))
    with people.open(encoding="utf-8-sig") as rows, Path("p.csv").open() as predictions:
        labels = [row["paid"].lower() for row in csv.DictReader(rows, delimiter=";")]
        predicted = [row["predicted paid"] for row in csv.DictReader(predictions)]
    right = sum(a == b for a, b in zip(labels, predicted, strict=True))
    assert facts("runs/a")["test_accuracy"] == pytest.approx(right / ROWS)
    assert "public test examples" in Path("runs/a/report.html").read_text()
    frame.to_parquet("typed.parquet")
    for table in ("typed.jsonl", "typed.parquet"):
        assert run("predict", "runs/a", table).stdout == Path("p.csv").read_text(), "a CSV holds the same values"


def test_regression_in_the_unit_of_its_target(people, monkeypatch):
    statuses: list[str] = []
    monkeypatch.setattr(Watch, "show", lambda watch, done, steps, status: statuses.append(status))
    assert run("schema", people, "--label", "hours", "--target", "0,60", "--size", 400, "--number", "age=0,100",
               "--ignore", "id,job,paid").exit_code == 0  # fmt: skip
    options = ("--unit", "h", "--holdout", 0.3, "--epsilon", 50, "--epochs", 12, "--delta", 1e-4)
    shown = succeeded(run("train", "--data", people, "--columns", "schema.toml", *options, "--out", "runs/hours"))
    found = facts("runs/hours")["test"]
    assert found["unit"] == "h"
    assert found["rmse"] < 0.7 * found["base_rmse"]
    assert "best constant" in shown.output
    assert re.match(rf"epsilon \d+\.\d\d  RMSE {found['rmse']:.4g}  \d+ thread", statuses[-1])
    assert f"Test error (RMSE) of {found['rmse']:.4g} h" in Path("runs/hours/report.html").read_text()
    header, *values = run("predict", "runs/hours", people).stdout.splitlines()
    assert (header, len(values)) == ("predicted hours", ROWS)
    assert all(0 <= float(value) <= 60 for value in values)


def test_texts_of_a_column(trained):
    draw = random.Random(1)
    lines = [f'"{draw.choice(["good", "bad"])}, {draw.random()}"' for _ in range(200)]
    Path("reviews.csv").write_text("text,label\n" + "".join(f"{line},{int('good' in line)}\n" for line in lines))
    options = ("--text", "text", "--tokens", 8, "--classes", 2, "--size", 200, "--model", "transformer", *QUICK)
    succeeded(run("train", "--data", "reviews.csv", *options, "--out", "runs/r"))
    statement = words("runs/r/privacy.txt")
    assert "the first 8 words of a text are numbered by a fixed hash of the word to one of 4,096 numbers" in statement
    assert run("predict", "runs/r", "reviews.csv").stdout.count("\n") == 201
    Path("new.csv").write_text("other\ngood\n")
    succeeded(run("predict", "runs/r", "new.csv", "--text", "other"))
    refusal(run("predict", "runs/r", "new.csv"), "there is no column 'text'")
    assert "new.csv exists" in run("predict", "runs/r", "reviews.csv", "--out", "new.csv").output


def test_images_of_different_sizes_and_their_predictions(trained):
    for index in range(6):
        place = Path("photos", "cat" if index % 2 else "dog", f"{index}.png")
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB" if index < 3 else "RGBA", (20 + index, 30), (255 * (index % 2), 0, 0)).save(place)
    declared = ("--classes", "cat,dog", "--size", 6, "--delta", 1e-2, "--epochs", 2, "--batch-size", 3)
    refusal(run("train", "--data", "photos", *declared), "image_size")
    succeeded(run("train", "--data", "photos", *declared, "--image-size", "8x10", "--grey", "--model", "mlp"))
    assert facts("runs/photos")["input_shape"] == [1, 10, 8]
    assert "8 x 10 pixels in grey" in words("runs/photos/privacy.txt")
    header, *lines = run("predict", "runs/photos", "photos/cat").stdout.splitlines()
    assert header == "image,predicted label,probability of cat,probability of dog"
    assert [line.split(",")[0] for line in lines] == ["1.png", "3.png", "5.png"]
    assert {line.split(",")[1] for line in lines} <= {"cat", "dog"}
    refusal(run("predict", trained / "run", "photos/cat"), "was not trained on images")
    assert "was not trained on columns of a CSV" in run("predict", "runs/photos", trained / "People.CSV").output


def test_a_run_that_is_continued_holds_out_the_same_records(people, schema, monkeypatch):
    def stop(*given: object) -> None:
        raise SystemExit(143)

    with monkeypatch.context() as patch:
        patch.setattr(Watch, "on_step", stop)
        stopped = run("train", "--data", people, "--columns", schema, "--holdout", 0.25, *QUICK, "--out", "runs/c")
    assert stopped.exit_code == 143
    settings = Path("runs/c.unfinished-1/checkpoint/settings.json")
    kept = settings.read_text()
    key = json.loads(kept)["holdout_key"]
    settings.write_text(kept.replace(key, "00" * 32))
    assert run("train", "--resume", "runs/c").exit_code == 2, "records held out before must not be trained on after"
    settings.write_text(kept)
    succeeded(run("train", "--resume", "runs/c"))
    assert facts("runs/c")["resumed"] == 1
    assert all(key not in file.read_text(errors="replace") for file in Path("runs/c").iterdir())


@pytest.mark.parametrize(
    ("wrong", "says", "right"),
    [
        ("--target 0,9", "declare one of them", None),
        ("--label payd", "there is no column 'payd'; did you mean 'paid'?", "--label paid"),
        ("--model cnn", "for rows of numbers take table, linear or mlp", "--model mlp"),
        ("--class-weights yes=9", "class_weights need a number for each class", "--class-weights no=1,yes=9"),
        ("--users id", "needs records_per_user: the most records", "--users id --records-per-user 2"),
        ("--batches cyclic", 'batches = "cyclic" needs bands', "--batches cyclic --bands 2"),
        ("--delta 0.01", "allow_large_delta", "--delta 0.01 --allow-large-delta"),
    ],
)
def test_wrong_options_leave_nothing_and_the_way_out_trains(trained, wrong, says, right):
    given = ("train", "--data", trained / "People.CSV", "--columns", trained / "schema.toml", *QUICK, "--out", "runs/x")
    refusal(run(*given, *wrong.split()), says)
    assert not Path("runs").exists()
    if right is not None:
        succeeded(run(*given, *right.split()))


def write_table(path: Path, frame: pandas.DataFrame) -> None:
    if path.suffix == ".xlsx":
        pytest.importorskip("openpyxl", reason="openpyxl is not installed")
    if path.suffix == ".jsonl":
        path.write_text(str(frame.to_json(orient="records", lines=True)))
    else:
        {".csv": frame.to_csv, ".parquet": frame.to_parquet, ".xlsx": frame.to_excel}[path.suffix](path, index=False)


@pytest.mark.parametrize("suffix", [".csv", ".xlsx"])
def test_an_empty_row_is_no_record_and_each_column_has_a_name_of_its_own(suffix):
    path, ages = Path("t" + suffix), [*(k % 9 for k in range(90)), None, *(k % 7 for k in range(110)), None]
    table = pandas.DataFrame({"age": ages, "label": [None if age is None else age % 2 for age in ages]}, dtype=object)
    write_table(path, table)
    if suffix == ".csv":
        path.write_text(path.read_text().replace("\n,\n", "\n\n"))
    succeeded(run("schema", path, "--classes", 2, "--size", 200, "--number", "age=0,9"))
    succeeded(run("train", "--data", path, "--columns", "schema.toml", *QUICK))
    predicted = succeeded(run("predict", "runs/t", path, "--keep", "age")).stdout.splitlines()
    assert [line.split(",")[0] for line in predicted] == ["age", *(str(age) for age in ages if age is not None)]
    write_table(path, table.iloc[:, [0, 1, 0]])
    declared = ("--data", path, "--classes", 2, "--size", 200)
    for command in (("schema", path, "--out", "o.toml"), ("train", *declared), ("predict", "runs/t", path)):
        refusal(run(*command), "must give each column a different name; column 3 has that of column 1")


def test_a_table_or_a_schema_is_no_recipe(people, schema):
    searched = ("--over", "lr=log(0.1,10)", "--score-on", "held-out")
    for command, options in (("train", ()), ("search", searched)):
        refusal(run(command, people, *options), "People.CSV is a table", "--data People.CSV")
        said = "schema.toml is a schema, not a recipe: noisette train takes a schema as --columns"
        refusal(run(command, schema, *options), said)
    Path("recipe.toml").write_text('[data]\nname = "People.CSV"\ncolumns = "schema.toml"\n')
    refusal(run("search", "recipe.toml", *searched), "recipe.toml names a schema as columns", "[data.columns.NAME]")


def test_text_in_another_encoding_is_refused_with_the_options_that_declare_it():
    Path("a.csv").write_bytes("naïve,label\nmüde,0\n".encode("latin-1"))
    assert "noisette schema --encoding latin-1" in run("schema", "a.csv", "--classes", 2, "--size", 400).output
    succeeded(run("schema", "a.csv", "--classes", 2, "--size", 400, "--encoding", "latin-1"))


def test_a_few_rows_are_warned_of_and_predictions_of_a_baseline_say_what_they_are():
    Path("few.csv").write_text("a,label\n" + "".join(f"0.{k % 2},{k % 2}\n" for k in range(40)))
    given = ("--data", "few.csv", "--classes", 2, "--size", 40, "--holdout", 0.5, "--model", "linear", "--epochs", 1)
    trained = succeeded(run("train", *given, "--batch-size", 10, "--delta", 1e-4))
    assert "Warning: of 20 records nothing can be learnt" in trained.stderr
    assert "Warning" not in succeeded(run("train", *given, "--batch-size", 10, "--without-privacy")).output
    for name, is_private in (("few", True), ("few-not-private", False)):
        predicted = succeeded(run("predict", f"runs/{name}", "few.csv"))
        assert ("run without privacy" in predicted.stderr) is not is_private
    lost = run("predict", "runs/few", "few.csv", "--out", "absent/p.csv")
    assert (lost.exit_code, "Errno" in lost.output) == (2, False)


def test_wrong_rows_are_named_without_their_values(people, schema):
    with people.open("a", encoding="utf-8") as stream:
        stream.write("SECRET;old;cook;maybe;1\n")
    of_age = f"column 'age': not a finite number (without % or $) in row {ROWS + 2}"
    of_class = f"column 'paid': none of the declared classes in row {ROWS + 2}"
    shown = refusal(run("train", "--data", people, "--columns", schema, *QUICK), of_age, of_class).output
    assert ("SECRET" in shown, "maybe" in shown) == (False, False)
    with people.open("a", encoding="utf-8") as stream:
        stream.write("SECRET;1;cook\n")
    short = f"the number of fields differs from the 5 of the header in row {ROWS + 3}"
    refusal(run("train", "--data", people, "--columns", schema, *QUICK), short)


def test_schema_reads_the_first_line_alone(people):
    Path("damaged.csv").write_bytes(b"id,age,paid\n\xff\xfe\x00 not UTF-8 at all")
    shown = succeeded(run("schema", "damaged.csv", "--label", "paid", "--classes", 2, "--number", "age=0,99"))
    assert 'Still to be declared, with kind = "?" in the file: id' in shown.output
    tables = tomllib.loads(Path("schema.toml").read_text())
    assert tables["columns"] == {
        "id": {"kind": "?"},
        "age": {"kind": "number", "low": 0, "high": 99, "missing": "indicator"},
    }
    refused = run("train", "--data", people, "--columns", "schema.toml", "--size", 400)
    assert "'id': expected kind to be one of number, date, category, hashed, ignored, got '?'" in refused.output
    assert "schema.toml exists" in run("schema", "damaged.csv").output


REAL = """id;Diagnosis;born;income;sex;paid
17;E11.9;01.03.1950;1.234,50;m;yes
18;;-;k.A.;f;no
""".replace("sex", "Geschlecht ä")
BORN = 'kind = "date"\nlow = "1900-01-01"\nhigh = "2000-01-01"\nformat = "%d.%m.%Y"\nmissing = "indicator"'


def test_a_table_of_real_life_is_trained_on_and_predicted():
    Path("real.csv").write_bytes(REAL.encode("latin-1"))
    declared = run("schema", "real.csv", "--label", "paid", "--classes", "no,yes", "--size", 2, "--ignore", "id",
                   "--number", "income=0,5000", "--category", "Geschlecht ä=m,f", "--encoding", "latin-1")  # fmt: skip
    assert declared.exit_code == 0, declared.output
    told = Path("schema.toml").read_text().replace("high = 5000\n", 'high = 5000\nmissing_words = ["k.A."]\n')
    for kind in ('kind = "hashed"\nwidth = 8\nmissing = "own category"', BORN):
        told = told.replace('kind = "?"', kind, 1)
    Path("schema.toml").write_text('decimal = ","\nthousands = "."\n' + told)
    shown = succeeded(run("train", "--data", "real.csv", "--columns", "schema.toml", "--epochs", 1, "--delta", 1e-3))
    lines = run("predict", "runs/real", "real.csv", "--keep", "id,born").output.splitlines()
    assert lines[0].startswith("id,born,predicted paid,probability of no")
    assert [line.split(",")[:2] for line in lines[1:]] == [["17", "01.03.1950"], ["18", "-"]]
    assert "--keep: there is no column 'name'" in run("predict", "runs/real", "real.csv", "--keep", "name").output
    shown = succeeded(run("doctor", "noisette.nn.models.networks:mlp", "--columns", "schema.toml"))
    assert "32 × 17" in shown.output, "9 of the diagnosis, 2 of the date, 2 of the income, 4 of the sex"
    assert facts("runs/real")["recipe"]["data"]["encoding"] == "latin-1"


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".xlsx"])
def test_a_schema_takes_the_names_of_any_table(suffix):
    path = Path("typed" + suffix)
    write_table(path, pandas.DataFrame({"age": [1, 2], "label": ["SECRET", "SECRET"]}))
    succeeded(run("schema", path, "--classes", 2, "--number", "age=0,9"))
    assert "SECRET" not in Path("schema.toml").read_text()
    assert list(tomllib.loads(Path("schema.toml").read_text())["columns"]) == ["age"]


@pytest.mark.parametrize(
    ("names", "options", "says"),
    [
        ("a,a", (), "a different name; column 2 has that of column 1"),
        ("a,b", ("--number", "c=0,1", "--label", "a"), "there is no column 'c'"),
        ("a,b", ("--number", "a"), "expected --number as age=0,100"),
        ("a,label", ("--number", "a=5,1"), "expected low < high"),
        ("a,b", ("--number", "a=0,1", "--ignore", "a"), "the column 'a' is declared twice"),
        ("a,label", ("--classes", 'x,"y'), "expected --classes as names separated by commas, quoted as"),
        ("SECRET,0.25", (), "the first line must name the columns; its field 2 is a number"),
        ('label,"a\nSECRET",b', (), "the quotes in the first line, the header, do not match"),
    ],
)
def test_wrong_schemas_leave_nothing(names, options, says):
    Path("x.csv").write_text(f"{names}\n1,2\n")
    assert "SECRET" not in refusal(run("schema", "x.csv", *options), says).output
    assert not Path("schema.toml").exists()
    Path("x.zip").write_bytes(b"PK")
    assert "x.zip is a file of another kind; give one that ends in .csv, .tsv" in run("schema", "x.zip").output


def test_names_with_commas_in_quotes():
    Path("x.csv").write_text('q,"p,q",label\n')
    succeeded(run("schema", "x.csv", "--classes", '"a, b", c', "--category", 'q="x,y",z', "--ignore", '"p,q"'))
    found = tomllib.loads(Path("schema.toml").read_text())
    assert (found["classes"], found["columns"]["q"]["categories"]) == (["a, b", "c"], ["x,y", "z"])
    assert found["columns"]["p,q"] == {"kind": "ignored"}
