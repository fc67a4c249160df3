"""The page: inline style and one Jinja template. No script, no external address; it knows nothing of what it shows.

>>> render(title="demo", subtitle="", facts=[], sections=[], details=[])[:15]
'<!doctype html>'
"""

from __future__ import annotations

import base64
from pathlib import Path

import jinja2

CSS = """
:root { --ink: #1f2933; --muted: #5d6975; --line: #e1e6ea; --soft: #f6f8f9; --accent: #0072B2; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: #fff; font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto,
  "Helvetica Neue", Arial, sans-serif; -webkit-text-size-adjust: 100%; }
main { max-width: 1060px; margin: 0 auto; padding: 48px 24px 80px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.01em; }
h2 { font-size: 20px; margin: 52px 0 6px; letter-spacing: -0.005em; }
p { margin: 6px 0 14px; max-width: 76ch; }
.lead { color: var(--muted); font-size: 17px; }
.note { color: var(--muted); font-size: 14px; }
.warn { border-left: 4px solid #D55E00; background: #fdf4ee; padding: 10px 16px; margin: 18px 0; }
.cards { display: flex; flex-wrap: wrap; gap: 14px; margin: 26px 0 8px; }
.card { flex: 1 1 210px; border: 1px solid var(--line); border-radius: 10px; padding: 14px 18px;
  background: var(--soft); }
.card b { display: block; font-size: 30px; line-height: 1.2; font-variant-numeric: tabular-nums; }
.card span { color: var(--muted); font-size: 14px; display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 14px 0 8px; font-size: 14.5px; font-variant-numeric: tabular-nums; }
th { text-align: right; font-weight: 600; color: var(--muted); border-bottom: 2px solid var(--line);
  padding: 6px 14px 6px 0; vertical-align: bottom; }
td { text-align: right; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
th.left, td.left { text-align: left; }
td.wrap { white-space: normal; min-width: 16em; }
tr.strong td { font-weight: 650; background: var(--soft); }
figure { margin: 14px 0 8px; }
figure img { max-width: 100%; height: auto; display: block; }
figcaption { color: var(--muted); font-size: 14px; max-width: 86ch; }
details { margin: 14px 0; border: 1px solid var(--line); border-radius: 8px; padding: 8px 16px; }
summary { cursor: pointer; font-weight: 600; }
pre { background: var(--soft); border-radius: 8px; padding: 12px 16px; overflow-x: auto; font: 13px/1.5 ui-monospace,
  SFMono-Regular, Menlo, Consolas, monospace; }
"""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>{{ css | safe }}</style>
</head>
<body>
<main>
<h1>{{ title }}</h1>
<p class="lead">{{ subtitle }}</p>
{% if cards %}<div class="cards">{% for card in cards %}
<div class="card"><b>{{ card.value }}</b><span>{{ card.label }}</span></div>{% endfor %}
</div>{% endif %}
{% for warning in warnings %}<p class="warn">{{ warning }}</p>
{% endfor %}
{% for section in sections %}
<section>
<h2>{{ section.title }}</h2>
{% if section.text %}<p>{{ section.text }}</p>{% endif %}
{% if section.image %}<figure><img alt="{{ section.title }}" src="data:image/png;base64,{{ section.image }}">
{% if section.caption %}<figcaption>{{ section.caption }}</figcaption>{% endif %}</figure>{% endif %}
{% if section.table %}<div class="scroll"><table>
<thead><tr>{% for heading in section.table.headings -%}
<th{% if loop.index0 < section.table.left %} class="left"{% endif %}>{{ heading }}</th>
{%- endfor %}</tr></thead>
<tbody>{% for row in section.table.rows %}
<tr{% if loop.index0 in section.table.strong %} class="strong"{% endif %}>{% for cell in row -%}
<td class="{% if loop.index0 < section.table.left %}left{% endif %}{% if cell | length > 60 %} wrap{% endif %}">
{{- cell }}</td>
{%- endfor %}</tr>{% endfor %}
</tbody></table></div>{% endif %}
{% if section.note %}<p class="note">{{ section.note }}</p>{% endif %}
</section>
{% endfor %}
{% for detail in details %}
<details{% if detail.open %} open{% endif %}><summary>{{ detail.title }}</summary><pre>{{ detail.text }}</pre></details>
{% endfor %}
</main>
</body>
</html>
"""


def table(headings: list[str], rows: list[list[str]], left: int = 1, strong: tuple[int, ...] = ()) -> dict:
    """A table of strings: the first ``left`` columns stand at the left, the rows numbered in ``strong`` stand out."""
    return {"headings": headings, "rows": rows, "left": left, "strong": strong}


def image(path: Path) -> str:
    """A PNG as base64 text."""
    return base64.b64encode(path.read_bytes()).decode("ascii")


def render(**content) -> str:
    """Fill the page; all text is escaped. Keys: title, subtitle, cards, warnings, sections, details."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(PAGE).render(css=CSS, **content)


def write_page(path: Path, **content) -> Path:
    """Render to ``path``, complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(render(**content), encoding="utf-8")
    partial.replace(path)
    return path
