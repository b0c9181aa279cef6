"""The templates of card and page, beside this file."""

from functools import lru_cache

import jinja2


@lru_cache(maxsize=2)
def template(name: str) -> jinja2.Template:
    """Return a template; what is put into it is escaped unless the template says otherwise."""
    loader = jinja2.PackageLoader("tasks.report", "")
    env = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    env.filters |= {"number": lambda value: f"{value:,}", "percent": lambda value: f"{value:.1%}"}
    return env.get_template(name)
