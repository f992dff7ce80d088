"""The report on data of the user's own: declared columns, numbers to predict, records held out."""

from dataclasses import replace

from finished_runs import with_recipe
from noisette.training.report.facts import ClassFigures, Facts, NumberFigures, Point
from noisette.training.report.page import page
from noisette.training.report.statement import as_text, statement

COUNTS = ((90, 10), (6, 14))
FIGURES = ClassFigures(104 / 120, 100 / 120, 0.8, 0.87654, COUNTS, 0.3004, 0.45056, (0.81, 0.19))
COLUMNS = {"age": {"kind": "number", "low": 0, "high": 99, "missing": "indicator"}, "id": {"kind": "ignored"}}


def held_out(facts: Facts) -> Facts:
    own = with_recipe(facts, data={"holdout": 0.25, "classes": ("no", "<yes>"), "columns": COLUMNS})
    return replace(own, classes=2, test=FIGURES, test_accuracy=FIGURES.accuracy)


def regression(facts: Facts) -> Facts:
    own = with_recipe(facts, data={"target": (0.0, 60.0), "unit": "h", "label": "hours"})
    points = tuple(Point(p.step, p.epsilon, None, 30 - p.step / 10) for p in facts.points)
    figures = NumberFigures(rmse=5.25, mae=4.0, base_rmse=12.0, base_mae=10.0, unit="h")
    return replace(own, classes=1, test=figures, test_accuracy=None, points=points)


def words(text: str) -> str:
    return " ".join(text.split())


def test_figures_are_beside_what_needs_no_model(facts):
    assert dict(FIGURES.rows(held_out(facts).class_names)) == {
        "test accuracy": "86.7 %",
        "base rate": "83.3 % (always the most frequent class)",
        "macro accuracy": "80.0 % (mean over the classes)",
        "AUC": "0.877",
        "log loss": "0.300 (base rate: 0.451)",
        "precision and recall of <yes>": "58.3 % and 70.0 %, F1 0.636",
        "mean probability of <yes>": "19.0 % (16.7 % are)",
    }
    assert dict(regression(facts).test.rows(())) == {
        "test RMSE": "5.25 h (best constant: 12 h)",
        "test MAE": "4 h (best constant: 10 h)",
    }
    assert "Errors are of targets clipped to 0..60 h" in words(page(regression(facts)))
    assert "Errors are of" not in page(held_out(facts))


def test_the_confusion_matrix_names_classes(facts):
    html = page(held_out(facts))
    assert '<tr><th scope="row">no</th><td class="right">90</td><td>10</td></tr>' in html
    assert '<tr><th scope="row">&lt;yes&gt;</th><td>6</td><td class="right">14</td></tr>' in html
    many = tuple((1,) * 13 for _ in range(13))
    assert "Confusion matrix" not in page(replace(facts, classes=13, test=replace(FIGURES, confusion=many)))


def test_two_classes_have_a_curve_of_precision_beside_the_base_rate(facts):
    curve = replace(FIGURES, average_precision=0.61234, recall_precision=((0.05, 1.0), (0.5, 0.7), (1.0, 0.2)))
    html = page(replace(held_out(facts), test=curve))
    assert "<td>0.612 (base rate: 0.167)</td>" in html
    said = "precision against recall; average 0.612: from 1 at 0.05 to 0.2 at 1; dashed, base rate: 0.167"
    assert f"<title>Precision against recall</title>\n<desc>{said}</desc>" in html
    assert "Of &lt;yes&gt;, as the threshold" in html
    assert "Precision against recall" not in page(held_out(facts)) + page(regression(facts))


def test_a_rare_class_has_its_own_headline_and_what_is_worse_than_a_constant_is_red(facts):
    good = page(held_out(facts))
    assert "AUC 0.877 at a base rate of 83.3 %" in words(good)
    assert 'class="worse"' not in good
    for change, said in (
        ({"log_loss": 0.46}, "Worse than the base rate in log loss. To find more of the rare class, lower"),
        ({"log_loss": None, "accuracy": 0.8}, "Worse than the base rate in accuracy and log loss. To find"),
        ({"log_loss": 0.6, "base_log_loss": 0.5, "base_rate": 0.6}, "Worse than the base rate in log loss. More"),
    ):
        assert f'<p class="worse">{said}' in page(replace(held_out(facts), test=replace(FIGURES, **change)))
    assert "give class weights" not in replace(FIGURES, log_loss=0.46).problem, "they may have been given"
    assert "86.7 % test accuracy" in page(replace(held_out(facts), test=replace(FIGURES, base_rate=0.6)))
    bad = NumberFigures(rmse=12.5, mae=4.0, base_rmse=12.0, base_mae=10.0, unit="h")
    assert "Worse than the best constant in RMSE" in page(replace(regression(facts), test=bad))


def test_the_course_of_a_rare_class_is_its_log_loss(facts):
    points = tuple(replace(point, test_log_loss=0.5 - point.step / 1000) for point in facts.points)
    rare, even = replace(held_out(facts), points=points), replace(FIGURES, base_rate=0.6)
    assert "Test log loss against ε" in page(rare)
    assert "Test accuracy against ε" not in page(rare)
    assert "Test accuracy against ε" in page(replace(rare, test=even))


def test_the_set_of_the_figures_is_named(facts):
    own, public = words(page(held_out(facts))), words(page(replace(facts, classes=2, test=FIGURES)))
    assert "on the records held out: about 25.0 % of all" in own
    assert "public test examples" not in own
    assert "Computed on the public test examples, exactly." in public
    assert "held out" not in public


def test_the_statement_says_what_was_declared(facts):
    own = words(as_text(statement(held_out(facts)), title="x"))
    assert "Inputs: 2, made from 1 columns by the declaration in run.json" in own
    number = words(as_text(statement(regression(facts)), title="x"))
    assert "Target: the number in the column 'hours', clipped to its declared bounds, 0 to 60 h." in number


def test_the_statement_says_how_words_are_numbered(facts):
    def said(public_weights: str, weights: str | None) -> str:
        given = with_recipe(facts, data={"text": "review", "tokens": 9}, model={"weights": weights})
        return words(as_text(statement(replace(given, words=4096, public_weights=public_weights)), title="x"))

    hashed = "the first 9 words of a text are numbered by a fixed hash of the word to one of 4,096 numbers"
    assert hashed in said("", None)
    assert hashed in said("a1b2", "vectors.safetensors"), "a file of weights has no tokenizer"
    assert "numbered by the tokenizer of a public model" in said("a1b2", None)
    assert "numbered by" not in words(as_text(statement(facts), title="x"))


def test_a_number_has_an_error_in_headline_and_figure(facts):
    html = page(regression(facts))
    assert "Test error (RMSE) of 5.25 h" in html
    assert "<title>Test error against ε</title>" in html
    assert "test accuracy" not in words(html).lower()
    assert "a number to predict" in html
