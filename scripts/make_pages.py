#!/usr/bin/env python3
"""make_pages.py - a manual page, or the Markdown of a page below docs, from what `exfold --help-json` prints.

usage: exfold --help-json | make_pages.py NAME

NAME is PROGRAM.1, exfold-recipe.5, exfold-manifest.5, exfold-variants.7 or exfold.7 (from docs/exfold.7.in) for man(7)
source; PROGRAM.md, exfold-recipe.md, exfold-manifest.md, exfold-variants.md or exfold-status.md for the same as Markdown.
Equal tables give equal bytes: no date, no path, no commit.  src/cli/program.h says what the tables are.
"""
import json
import pathlib
import re
import sys

ROFF = {"\\": r"\(rs", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti", '"': r"\(dq"}


def roff(text):
    """Escapes what roff or a UTF-8 terminal would change: backslashes, hyphens, quotes, a dot that starts a line."""
    return re.sub(r"(?m)^\.", r"\\&.", re.sub(r"[\\'`^~\"-]", lambda c: ROFF[c.group()], text))


class Man:
    """A manual page in man(7).  What stands in `backticks` is bold."""

    def __init__(self, release):
        self.release, self.text = release, ""

    def add(self, *lines):
        self.text += "".join(line + "\n" for line in lines)

    def inline(self, text):
        return "".join(rf"\fB{roff(part)}\fR" if i % 2 and part else roff(part) for i, part in enumerate(text.split("`")))

    def title(self, name, section, about):
        self.add('.\\" Made from the option tables by scripts/make_pages.py.',
                 f'.TH "{name.upper()}" {section} "" "ExFold {self.release}"', ".SH NAME", rf"{roff(name)} \- {roff(about)}")

    def section(self, heading):
        self.add(f".SH {heading}")

    def heading(self, heading):
        self.add(f".SS {self.inline(heading)}")

    def paragraphs(self, text):
        for paragraph in text.split("\n\n"):
            self.add(".PP", self.inline(paragraph))

    def verbatim(self, heading, text):
        self.add(f".SH {heading}", ".nf", roff(text), ".fi")

    def example(self, _language, text):
        self.verbatim("EXAMPLE", text)

    def table(self, *_headings):
        """The rows are a list."""

    def item(self, label, text):
        """A list's item, both as roff has them."""
        self.add(".TP", label, text or r"\&")

    def row(self, label, meaning, default=None):
        if default:
            meaning = f"{self.inline(meaning)} ({'' if default == 'required' else 'default '}{self.inline(default)})"
        else:
            meaning = self.inline(meaning)
        self.item(self.inline(label), meaning)

    def see_also(self, *names):
        self.add('.SH "SEE ALSO"')
        self.add(",\n".join(f".BR {roff(name)}" for name in names))


class Markdown:
    """The same as Markdown, for a file that has a heading of its own."""

    def __init__(self, _release):
        self.text = ""

    def add(self, *lines):
        self.text += "".join(line + "\n" for line in lines)

    def blank_line(self):
        if self.text and not self.text.endswith("\n\n"):
            self.text += "\n"

    def inline(self, text, in_table=False):
        """Escapes what would be markup outside of code; a bar ends a table's cell anywhere."""
        parts = text.split("`")
        parts[::2] = [re.sub(r"([*<\\])", r"\\\1", part) for part in parts[::2]]
        text = "`".join(parts)
        return text.replace("|", "\\|") if in_table else text

    def title(self, name, section, about):
        """The file around it has its heading."""

    def section(self, heading):
        """Headings of the second level are enough."""

    def heading(self, heading):
        self.blank_line()
        self.add(f"## {self.inline(heading)}")

    def paragraphs(self, text):
        self.blank_line()
        self.add(self.inline(text))

    def example(self, language, text):
        self.blank_line()
        self.add(f"```{language}", text, "```")

    def table(self, *headings):
        self.blank_line()
        self.add(f"| {' | '.join(headings)} |", "|---" * len(headings) + "|")

    def row(self, label, meaning, default=None):
        cells = [label, meaning] if default is None else [label, default, meaning]
        self.add("|" + "".join(f" {self.inline(cell, in_table=True)} |" for cell in cells))

    def see_also(self, *names):
        """Pages have links."""


# ---- options and keys ------------------------------------------------------------------------


def remarks(row, *further):
    """help (1 to 9; and what else there is to say)"""
    notes = [note for note in (row["limits"], *further) if note]
    return row["help"] + (f" ({'; '.join(notes)})" if notes else "")


def default_of(row):
    is_off = row["is_flag"] and row["default"] == "false"
    return f"default {row['default']}" if row["default"] is not None and not is_off else None


def flag_in_roff(row):
    """-o, --output DIR"""
    letter = rf"\fB\-{row['letter']}\fR, " if row["letter"] else ""
    no = r"[no\-]" if row["is_flag"] and row["default"] == "true" else ""
    value = "" if row["is_flag"] else rf" \fI{roff(row['value'])}\fR"
    return rf"{letter}\fB\-\-{no}{roff(row['flag'])}\fR{value}"


def add_man_rows(page, rows, kind):
    """A list of all rows that have a flag, or a key, under a heading for each group."""
    group = None
    for row in rows:
        if not row[kind]:
            continue
        if row["group"] != group:
            page.heading(group := row["group"])
        if kind == "flag":
            recipe = f"recipe: {row['key']}" if row["key"] else None
            page.item(flag_in_roff(row), roff(remarks(row, default_of(row), recipe)))
        else:
            or_flag = f"   or {flag_in_roff(row)}" if row["flag"] else ""
            page.item(rf"\fB{roff(row['key'])}\fR = \fI{roff(row['value'])}\fR{or_flag}", roff(remarks(row, default_of(row))))


# ---- programs ----------------------------------------------------------------------------------

FILES = [
    ("RECIPE.yaml", "everything a run is told, exfold-recipe(5)"),
    ("capture.h5", "routes and expert outputs of chosen layers"),
    ("statistics.h5", "exact sums and counts of every pair; files of different data add up"),
    ("tables.h5", "scalars, losses, norms and pools"),
    ("validation.json, validation.md", "quality of every validated variant"),
    ("exfold_recipe.yaml", "the recipe as resolved: every key with the value that was used"),
]


def program_man(page, tables, program):
    name, about = program["name"], program["about"]
    page.title(name, 1, program["brief"])
    page.add(".SH SYNOPSIS", ".nf",
             *(rf"\fB{roff(name)}\fR [\fIOPTION\fR ...] {roff(way)}" for way in program["arguments"].split(" | ")), ".fi")
    if "   " in about:
        page.verbatim("DESCRIPTION", about)
    else:
        page.section("DESCRIPTION")
        page.add(roff(about))
    if program["commands"]:
        page.section("COMMANDS")
        for command in program["commands"]:
            page.item(rf"\fB{roff(command['name'])}\fR {roff(command['arguments'])}", roff(command["about"]))
    if program["runs_others"]:
        page.section("PROGRAMS")
        for other in tables["programs"]:
            if not other["runs_others"]:
                page.item(rf"\fB{roff(other['name'])}\fR(1)", roff(other["brief"]))
    page.section("OPTIONS")
    add_man_rows(page, program["options"], "flag")
    if program["keys"]:
        page.section('"RECIPE KEYS"')
        page.add("The program reads these keys.",
                 r"Each can stand in the recipe, and on the command line as \fB\-\-set\fR \fIKEY\fR=\fIVALUE\fR.",
                 "The command line beats the recipe, the recipe beats the default.", "See", r".BR exfold\-recipe (5).")
        add_man_rows(page, program["options"], "key")
    page.section('"EXIT STATUS"')
    status_page(page, tables)
    page.section("FILES")
    page.add("Outputs stand in the output directory.")
    for file, about in FILES + [(target["file"].rstrip("/"), target["about"]) for target in tables["targets"]]:
        page.item(rf"\fI{roff(file)}\fR", roff(about))
    if program["examples"]:
        page.verbatim("EXAMPLES", program["examples"])
    page.see_also("exfold (7)", "exfold-recipe (5)")


def program_markdown(page, tables, program):
    """A section of docs/programs.md.  Options that set a recipe key are those of docs/recipe.md, export targets of
    docs/serving.md; the manual page has examples."""
    page.heading(program["name"])
    page.paragraphs(program["about"])
    page.example("text", "\n".join(f"{program['name']} [OPTION ...] {way}" for way in program["arguments"].split(" | ")))
    if program["commands"]:
        page.table("command", "what it does")
    for command in program["commands"]:
        page.row(f"`{(command['name'] + ' ' + command['arguments']).strip()}`", command["about"].replace("\n", " "))
    if any(row["flag"] and row["key"] for row in program["options"]):
        page.paragraphs("It takes the flags of the [recipe keys](recipe.md#who-reads-what) that it reads, and:")
    page.table("option", "default", "meaning")
    for row in program["options"]:
        if not row["flag"] or row["is_common"] or row["key"]:
            continue
        label = (f"`-{row['letter']}`, " if row["letter"] else "") + f"`--{row['flag']}{'' if row['is_flag'] else ' ' + row['value']}`"
        default = f"`{row['default']}`" if row["default"] is not None and not row["is_flag"] else ""
        page.row(label, remarks(row), default)


# ---- pages in both forms -----------------------------------------------------------------------


def recipe_page(page, tables):
    page.title("exfold-recipe", 5, "everything a calibration is told")
    page.section("DESCRIPTION")
    page.paragraphs("""\
A recipe is a YAML map with `schema: exfold-recipe/1`.  A dotted key stands in the section before
its dot.  One recipe serves all programs: each reads the keys that its `--help-keys` lists, and takes
those on the command line too, with `--set KEY=VALUE` or, where a key has one, its flag.  The command
line beats the recipe, the recipe beats the default.  An unknown key is an error that names the nearest
known one.  Paths in a recipe are relative to the recipe's file, paths on the command line to the working
directory.
Lists are written `[a, b]`, or `a,b` or `a b` on the command line; the empty list is `[]`.""")
    page.section("KEYS")
    group = None
    for row in tables["keys"]:
        if row["group"] != group:
            page.heading(group := row["group"])
            page.table("key", "default", "meaning")
        label = f"`{row['key']}` = {row['value']}"
        label += f", `-{row['letter']}`" if row["letter"] else ""
        label += f", `--{row['flag']}`" if row["flag"] else ""
        page.row(label, remarks(row), f"`{row['default']}`" if row["default"] is not None else "")
    page.heading("Who reads what")
    page.paragraphs("A section's name stands for all of its keys.")
    page.table("program", "keys")
    for program in tables["programs"]:
        if program["keys"]:
            page.row(f"`{program['name']}`", program["keys"])
    page.example("yaml", """\
schema: exfold-recipe/1
model: {path: model}
data: {manifest: manifest.yaml, max_tokens: 32, seed: 1}
calibrate: {weighting: source_norm, ridge: 1.0e-3, clip: [-4, 4]}
pools: [2]
output: {directory: out, targets: [safetensors]}""")
    page.see_also("exfold (7)", "exfold-calibrate (1)", "exfold-manifest (5)", "exfold-variants (7)")


def manifest_page(page, tables):
    page.title("exfold-manifest", 5, "where the text of a calibration comes from")
    page.section("DESCRIPTION")
    page.paragraphs("""\
A manifest is a YAML map with `schema: exfold-manifest/1` and a list `sources`, each a map with the keys
below.  Paths are relative to the manifest's file.  An unknown key is an error that names the nearest
known one, and so is a key that the source's format has no use for.  Files of text may be compressed with
gzip or zstd.

Documents never share a sequence and nothing is padded.  A document is tokenised and cut into pieces of
`data.max_tokens`, the last one shorter; what is below `data.min_tokens` is dropped.  A source with more
sequences than asked for gives a seeded choice without replacement, in file order.  If `data.sequences`
differs from the sum of the sources', it is shared in proportion; sources without `sequences` share evenly
what the others leave.""")
    page.section("KEYS")

    def add_keys(heading, keys):
        page.heading(heading)
        page.table("key", "default", "meaning")
        for key in keys:
            page.row(f"`{key['name']}`", key["about"], key["default"] or "required")

    add_keys("Keys of a source", tables["manifest"]["source"])
    page.heading("Formats")
    page.table("format", "the file")
    for key in tables["manifest"]["formats"]:
        page.row(f"`{key['name']}`", key["about"])
    add_keys("Keys of an origin", tables["manifest"]["origin"])
    page.example("yaml", """\
schema: exfold-manifest/1
sources:
  - path: corpus.jsonl
    format: jsonl
    field: text
    where: {domain: c}
    domain: c
    sequences: 16
    sha256: unpinned""")
    page.see_also("exfold (7)", "exfold-recipe (5)", "exfold-capture (1)")


def variants_page(page, tables):
    page.title("exfold-variants", 7, "ways to run a model with fewer experts")
    page.section("DESCRIPTION")
    page.paragraphs("""\
A variant is a kind with its number, options after a colon, separated by commas:
`P4:rank=score,max_loss=0.99`.  A prefill and a decode kind are joined by a plus: `P4+D64`.  An option
stands once.  The recipe key `validate.variants` and the option `--variants` of exfold-validate list them.

`diagonal` and `lowrank` act on vectors and are what scalars are compared with; they join a `D` or `sere`
only where `validate.prefill_tokens` separates the two.  `joint` solves for the weights that best stand in
for all omitted experts together, and is still router metadata only.  Shared experts are never folded,
hash-routed layers only as a runtime does that folds them (`serve.runtime`).  No public runtime folds by
predicted norms; budgets have a lambda of their own by these.

In the tables below w is a route's weight, h the mean norm of its expert's output, rms the root mean square
of that norm.""")
    page.section("KINDS")
    for kind in tables["variants"]:
        page.heading(kind["example"])
        page.paragraphs(kind["about"])
        if kind["options"]:
            page.table("option", "default", "meaning")
        for option in kind["options"]:
            page.row(f"`{option['name']}{'=' if option['values'] else ''}{option['values']}`", option["about"], option["default"])
    page.see_also("exfold (7)", "exfold-recipe (5)", "exfold-validate (1)")


def status_page(page, tables):
    page.table("status", "meaning")
    for status in sorted(tables["statuses"], key=lambda status: status["status"]):
        page.row(f"`{status['status']}`", status["meaning"])


# ---- the pages by name ---------------------------------------------------------------------------


def overview(tables):
    """exfold.7: docs/exfold.7.in with the lists of programs and exit statuses."""
    programs, statuses = Man(""), Man("")
    for program in tables["programs"]:
        programs.item(rf"\fB{roff(program['name'])}\fR(1)", roff(program["brief"]))
    status_page(statuses, tables)
    text = (pathlib.Path(__file__).parent.parent / "docs/exfold.7.in").read_text(encoding="utf-8")
    return text.replace("@version@", tables["release"]).replace("@programs@\n", programs.text).replace("@status@\n", statuses.text)


PAGES = {"exfold-recipe.5": recipe_page, "exfold-manifest.5": manifest_page, "exfold-variants.7": variants_page,
         "exfold-recipe.md": recipe_page, "exfold-manifest.md": manifest_page, "exfold-variants.md": variants_page,
         "exfold-status.md": status_page}


def make_page(tables, name):
    if name == "exfold.7":
        return overview(tables)
    stem, _, ending = name.rpartition(".")
    page = (Markdown if ending == "md" else Man)(tables["release"])
    programs = {program["name"]: program for program in tables["programs"]}
    if name in PAGES:
        PAGES[name](page, tables)
    elif stem in programs and ending in ("1", "md"):
        (program_man if ending == "1" else program_markdown)(page, tables, programs[stem])
    else:
        sys.exit(f"make_pages.py: {name} is no page of ExFold")
    return page.text


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: exfold --help-json | make_pages.py NAME")
    sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(make_page(json.loads(sys.stdin.buffer.read()), sys.argv[1]))
