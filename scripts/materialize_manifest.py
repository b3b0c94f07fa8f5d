#!/usr/bin/env python3
"""Make a data manifest's files from the datasets that its sources name as their origin.

    python3 scripts/materialize_manifest.py data-manifests/nemotron-32.yaml --model models/qwen3-30b-a3b
    exfold-capture recipes/qwen3-30b-a3b.yaml --pin-manifest

A source of the manifest may say where its file comes from (docs/data.md):

    origin:
      dataset: allenai/tulu-3-sft-mixture   # on the Hugging Face hub; ./NAME: beside the manifest
      revision: unpinned                    # a commit of the dataset, or its newest
      subset: default                       # its configuration, where it has several
      split: train
      where: {source: [a, b]}               # rows whose columns hold this value, or one of these
      skip: 0                               # then this many are left out
      take: 1000                            # and this many taken
      messages: messages                    # the column of the conversation (default), or
      text: text                            # the column of plain text

Each document becomes a line {"text": ...} (the source's `field`) of its file, in the dataset's order, a
conversation rendered with the chat template of --model (scripts/render_chat.py); with --no-render
it is left as {"messages": ...} for a renderer of your own.  A source that is pinned must come out
as its sha256 says.  Sources without origin are left alone.

Files go where the manifest says, or, with --output DIR, into DIR, which also gets manifest.yaml, a
copy whose paths, checksums and revisions are those of what was made: documents rendered for one
model are of no use to another, so give each its own DIR.

Needs the packages datasets and PyYAML, and jinja2 for conversations.  Datasets are streamed, so
only what is taken is downloaded; no code of a dataset is ever run.
"""
import argparse
import os

from render_chat import ChatTemplate, Failure, add_template_options, check_target, reaching, run, write_file, write_lines


def load_manifest(path):
    import yaml

    try:
        with open(path, encoding="utf-8") as f:
            manifest = yaml.load(f, yaml.BaseLoader)  # all scalars stay text, as for the programs
    except OSError as e:
        raise Failure(4, f"{path}: {e.strerror}") from e
    except yaml.YAMLError as e:
        raise Failure(2, f"{path}: {e}") from e
    if not isinstance(manifest, dict) or manifest.get("schema") != "exfold-manifest/1" or not isinstance(manifest.get("sources"), list):
        raise Failure(2, f"{path}: is no manifest (schema: exfold-manifest/1)")
    return manifest


def holds(row, column, wanted):
    if column not in row:
        raise Failure(3, f'the dataset has no column "{column}"; it has {", ".join(sorted(row))}')
    return str(row[column]) in (wanted if isinstance(wanted, list) else [wanted])


def select(rows, origin):
    """The rows that where, skip and take leave."""
    skip, take = int(origin.get("skip", 0)), int(origin["take"]) if "take" in origin else None
    where = origin.get("where", {})
    for row in rows:
        if not all(holds(row, column, wanted) for column, wanted in where.items()):
            continue
        if skip > 0:
            skip -= 1
            continue
        if take == 0:
            return
        yield row
        if take is not None:
            take -= 1
            if take == 0:
                return  # without asking for a row that nobody wants
    if take:
        raise Failure(3, f"the dataset ends {take} documents too early")


def documents(rows, origin, field, template):
    """{field: text} of every row, or {"messages": ...} without a template."""
    column = origin.get("text") or origin.get("messages", "messages")
    for number, row in enumerate(rows):
        if column not in row:
            raise Failure(3, f'the dataset has no column "{column}"; it has {", ".join(sorted(row))}')
        if "text" in origin:
            yield {field: row[column]}
        elif template is None:
            yield {"messages": row[column]}
        else:
            yield {field: template.render(row[column], f"document {number}")}


def is_local(name):
    return name.startswith((".", "/"))


def resolve(origin, directory):
    """(name, revision) as the datasets library wants them; an unpinned revision is the newest commit."""
    name, revision = origin["dataset"], origin.get("revision", "unpinned")
    if is_local(name):
        return os.path.join(directory, name), None
    if revision == "unpinned":
        from huggingface_hub import HfApi

        try:
            revision = HfApi().dataset_info(name).sha
        except Exception as e:  # the library raises whatever its parts do
            raise reaching(f"{name}: its newest revision is not known", e) from e
    return name, revision


def load_rows(name, revision, origin):
    import datasets

    try:
        return datasets.load_dataset(name, origin.get("subset"), split=origin["split"], revision=revision, streaming=True)
    except Exception as e:  # the library raises whatever its parts do
        raise reaching(name, e) from e


def stream(rows, name):
    """The rows as they come over the network, which may end before they do."""
    rows = iter(rows)
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except Exception as e:  # the library raises whatever its parts do
            raise reaching(name, e) from e
        yield row


def target_of(source, directory, output):
    path = source["path"]
    return os.path.join(output, os.path.basename(path)) if output else os.path.join(directory, path)


def materialize(source, directory, args, template):
    """Makes the file of one source; what a pinned copy of the manifest says of it."""
    origin, path = source["origin"], target_of(source, directory, args.output)
    expect = source.get("sha256", "unpinned")
    expect = None if expect == "unpinned" or args.no_render else expect.lower()
    try:
        name, revision = resolve(origin, directory)
        rows = select(stream(load_rows(name, revision, origin), name), origin)
        count, digest = write_lines(path, documents(rows, origin, source.get("field", "text"), template), args.force, expect)
    except Failure as e:
        raise Failure(e.status, f'{args.manifest}: {source["path"]} ({origin["dataset"]}, {origin["split"]}): {e}') from e
    print(f"wrote {path}  {count} documents of {origin['dataset']} at {revision or 'no revision'}  sha256 {digest}")
    made = dict(source, path=os.path.basename(path), sha256=digest)
    made["origin"] = dict(origin, **({"revision": revision} if revision else {}))
    return made


def with_numbers(tree):
    """The same with counts as numbers, which the loader left text."""
    return {k: with_numbers(v) if isinstance(v, dict) else int(v) if k in ("sequences", "skip", "take") else v for k, v in tree.items()}


def write_pinned(manifest, sources, args):
    import yaml

    path = os.path.join(args.output, "manifest.yaml")
    text = f"# {os.path.basename(args.manifest)} as it was made: paths, checksums and revisions of these files.\n"
    text += yaml.safe_dump({"schema": manifest["schema"], "sources": [with_numbers(s) for s in sources]}, sort_keys=False, allow_unicode=True)
    write_file(path, [text.encode("utf-8")], args.force)
    print(f"wrote {path}")


def wants_template(source):
    return "origin" in source and "text" not in source["origin"]


def check(sources, directory, args):
    """Refuses before the first download what could only fail after it."""
    made = [s for s in sources if "origin" in s]
    if not made:
        raise Failure(2, f"{args.manifest}: no source names its origin")
    if args.output and len(made) < len(sources):
        raise Failure(2, f"{args.manifest}: a source has no origin; a copy in {args.output} would lack its file")
    targets = [target_of(s, directory, args.output) for s in made]
    for target in targets:
        if targets.count(target) > 1:
            raise Failure(2, f"{args.manifest}: two sources would be made at {target}")
        check_target(target, args.force)
    if args.output:
        check_target(os.path.join(args.output, "manifest.yaml"), args.force)
    if any(wants_template(s) for s in made) and not args.model and not args.no_render:
        raise Failure(2, f"{args.manifest}: its documents are conversations; --model names the checkpoint whose template renders them")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("manifest")
    p.add_argument("--model", help="checkpoint directory whose chat template renders conversations")
    p.add_argument("--no-render", action="store_true", help="leave conversations as messages")
    p.add_argument("--output", metavar="DIR", help="make the files, and a pinned copy of the manifest, there")
    p.add_argument("--force", action="store_true", help="replace files that exist")
    add_template_options(p)
    args = p.parse_args()
    manifest, directory = load_manifest(args.manifest), os.path.dirname(args.manifest)
    sources = manifest["sources"]
    check(sources, directory, args)
    render = any(wants_template(s) for s in sources) and not args.no_render
    template = ChatTemplate(args.model, dict(args.set), args.date) if render else None
    made = [materialize(s, directory, args, template) if "origin" in s else s for s in sources]
    if args.output:
        write_pinned(manifest, made, args)


if __name__ == "__main__":
    run(main)
