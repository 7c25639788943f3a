"""What the site adds to MkDocs: the README is its first page, files outside of `docs` that a page links are in it, and `llms.txt`.

So a link is written once, as it works between files, and leads to the right place on the site as well. `llms.txt` lists the pages,
each with its first sentence, for models that read the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(\]\(|src=\"|srcset=\")(?!\w+:|#)([^)#\"\s]+)")
HOME = "README.md"
SENTENCE = re.compile(r"^[A-Za-z`][^\n]*(?:\n[^\n#|`-][^\n]*)*", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
pages: list[Page] = []


def place(file: str) -> str:
    """Return where a file of the project is on the site."""
    return "index.md" if file == HOME else file.removeprefix("docs/")


def targets(file: str) -> list[str]:
    """Return the files that a page of the project links."""
    text = (ROOT / file).read_text(encoding="utf-8")
    folder = posixpath.dirname(file)
    return [posixpath.normpath(posixpath.join(folder, target)) for _, target in LINK.findall(text)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README, and what is linked outside of `docs`."""
    waiting = [HOME, *(f"docs/{one.src_uri}" for one in files.documentation_pages())]
    seen: set[str] = set()
    while waiting:
        file = waiting.pop()
        if file in seen or not (ROOT / file).is_file():
            continue
        seen.add(file)
        if not file.startswith("docs/"):
            files.append(File.generated(config, place(file), abs_src_path=str(ROOT / file)))
        if PurePosixPath(file).suffix == ".md":
            waiting += targets(file)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links between files lead to the same files on the site."""
    here = page.file.src_uri
    written = next(
        one for one in (HOME, f"docs/{here}", here) if place(one) == here and (ROOT / one).exists()
    )

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(written), link[2]))
        return link[1] + posixpath.relpath(place(target), posixpath.dirname(here) or ".")

    return LINK.sub(moved, markdown)


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Note the pages."""
    pages[:] = nav.pages
    return nav


def on_post_build(config: MkDocsConfig) -> None:
    """Write `llms.txt`."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for page in pages:
        found = SENTENCE.search(FENCE.sub("", page.markdown or ""))
        about = " ".join(found[0].split()).partition(". ")[0] if found else ""
        lines.append(f"- [{page.title}]({page.file.dest_uri}): {about}")
    (Path(config.site_dir) / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
