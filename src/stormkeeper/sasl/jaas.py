"""JAAS files: a daemon's users, passwords and keytabs, in sections.

The format is Java's (``javax.security.auth.login.Configuration``); login module and flag may be
left out. No message or ``repr`` shows a secret.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from stormkeeper.conf import Conf, defaults
from stormkeeper.errors import ConfigError

FLAGS = ("required", "requisite", "sufficient", "optional")

#: In bytes; refuses a log or a device.
MAX_FILE_SIZE = 1 << 20

_TOKEN = re.compile(
    r"""
      (?P<space> (?: \s | //[^\n]* | /\*.*?\*/ )+ )
    | (?P<comment> /\* )
    | (?P<mark> [{};=] )
    | " (?P<quoted> (?: [^"\\\n] | \\[^\n] )* ) "
    | (?P<open> " )
    | (?P<word> [^\s{};="]+ )
    """,
    re.VERBOSE | re.DOTALL,
)

# Java's StreamTokenizer: \n and the like, \101 as in C, other characters unchanged.
_ESCAPE = re.compile(r"\\([0-3]?[0-7]{1,2}|.)")
_ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}

_PROPERTY = re.compile(r"\$\{[^}]*\}")


@dataclass(frozen=True, slots=True, repr=False)
class Login:
    """A section of a JAAS file; `module` is None if absent.

    The first module with an option gives the value, as in Storm.
    """

    section: str
    module: str | None
    options: Mapping[str, str]
    source: str
    line: int

    def __repr__(self) -> str:
        return f"<Login {self.section} of {self.place} with {', '.join(self.options) or 'nothing'}>"

    @property
    def place(self) -> str:
        return f"{self.source}:{self.line}"

    def option(self, name: str) -> str:
        """Return a required option; raises `ConfigError` if missing."""
        value = self.options.get(name, "")
        if not value:
            raise ConfigError(f'{self.place}: section {self.section} has no {name}="…"; add it')
        return value

    def switch(self, name: str, *, default: bool = False) -> bool:
        """Return a boolean option; raises `ConfigError` for other values."""
        value = self.options.get(name, str(default)).lower()
        if value not in ("true", "false"):
            raise ConfigError(f"{self.place}: {name} of {self.section} must be true or false")
        return value == "true"


def read(path: Path, named_by: str = "java.security.auth.login.config") -> dict[str, Login]:
    """Return the sections of a UTF-8 file by name; raise `ConfigError` with the place."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_SIZE + 1)
    except OSError as error:
        raise ConfigError(
            f"the JAAS file {path} cannot be read: {error.strerror}; it is named by {named_by}"
        ) from error
    if len(data) > MAX_FILE_SIZE:
        raise ConfigError(f"{path} is longer than {MAX_FILE_SIZE} bytes, so no JAAS file")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        # Without the cause, which has the whole file.
        raise ConfigError(f"{path}:{line}: a JAAS file must be UTF-8; convert it") from None
    return parse(text, str(path))


def parse(text: str, source: str = "JAAS") -> dict[str, Login]:
    """Return the sections of a JAAS text by name.

    Raises `ConfigError` with the line, never the text, which may be a part of a password.
    """
    tokens = _Tokens(source, list(_tokens(text, source)))
    sections: dict[str, Login] = {}
    while tokens.kind() != "end":
        place, line = tokens.place, tokens.line
        name = tokens.take("the name of a section", "word", "quoted")
        if name in sections:
            raise ConfigError(
                f"{place}: a second section with the name of line {sections[name].line}; merge them"
            )
        sections[name] = _read_section(tokens, name, line)
    return sections


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # "word", "quoted", "end", or one of {};=
    text: str
    line: int


def _tokens(text: str, source: str) -> Iterator[_Token]:
    line, position = 1, 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        assert match is not None
        assert match.lastgroup is not None
        kind = match.lastgroup
        if kind == "open":
            raise ConfigError(f"{source}:{line}: a quoted value has no closing quote on its line")
        if kind == "comment":
            raise ConfigError(f"{source}:{line}: a comment has no */")
        if kind == "quoted":
            yield _Token(kind, _unescape(match["quoted"]), line)
        elif kind == "mark":
            yield _Token(match[kind], "", line)
        elif kind == "word":
            yield _Token(kind, match[kind], line)
        line += text.count("\n", position, match.end())
        position = match.end()
    yield _Token("end", "", line)


def _unescape(quoted: str) -> str:
    def character(match: re.Match[str]) -> str:
        escaped = match[1]
        if escaped[0] in "01234567":
            return chr(int(escaped, 8))
        return _ESCAPED.get(escaped, escaped)

    return _ESCAPE.sub(character, quoted)


class _Tokens:
    def __init__(self, source: str, tokens: list[_Token]) -> None:
        self.source = source
        self._tokens = tokens
        self._next = 0

    @property
    def line(self) -> int:
        return self._tokens[self._next].line

    @property
    def place(self) -> str:
        return f"{self.source}:{self.line}"

    def kind(self, ahead: int = 0) -> str:
        return self._tokens[min(self._next + ahead, len(self._tokens) - 1)].kind

    def take(self, what: str, *kinds: str) -> str:
        """Return the next token's text; raise `ConfigError` for another kind."""
        if self.kind() not in kinds:
            end = " before the file ends" if self.kind() == "end" else ""
            raise ConfigError(f"{self.place}: expected {what}{end}")
        self._next += 1
        return self._tokens[self._next - 1].text


def _read_section(tokens: _Tokens, name: str, line: int) -> Login:
    tokens.take('"{" after the name of a section', "{")
    module = None
    options: dict[str, str] = {}
    while tokens.kind() != "}":
        if tokens.kind(1) != "=":
            place = tokens.place
            its_module = tokens.take("a login module, an option or }", "word")
            flag = tokens.take(f"one of {', '.join(FLAGS)} after a login module", "word")
            if flag.lower() not in FLAGS or tokens.kind() == "=":
                raise ConfigError(
                    f"{place}: expected a login module with one of {', '.join(FLAGS)}, or an option"
                    ' as name="value" (its quotes are needed where it has spaces)'
                )
            module = module or its_module
        for option, value in _read_options(tokens).items():
            options.setdefault(option, value)
    tokens.take('"}" after the options of a section', "}")
    tokens.take('";" after the } of a section', ";")
    return Login(name, module, MappingProxyType(options), tokens.source, line)


def _read_options(tokens: _Tokens) -> dict[str, str]:
    options: dict[str, str] = {}
    while (tokens.kind(), tokens.kind(1)) == ("word", "="):
        place = tokens.place
        option = tokens.take("an option", "word")
        tokens.take('"=" after an option', "=")
        value = tokens.take("a value after =", "word", "quoted")
        if option in options:
            raise ConfigError(f"{place}: the option {option} stands there twice; keep one")
        if _PROPERTY.search(value):
            raise ConfigError(
                f"{place}: {option} names a property of Java's as ${{…}}, and there is no Java"
                " here; write the value itself"
            )
        options[option] = value
    # Many files lack the semicolon before a }.
    if tokens.kind() != "}":
        tokens.take('";" after the last option of a section, or another option', ";")
    return options


KEY = "java.security.auth.login.config"
CHILDOPTS = "pacemaker.childopts"

_JVM_OPTION = f"-D{KEY}="


@dataclass(frozen=True, slots=True)
class LoginFile:
    """A JAAS file, and the key with the path: `KEY` or `CHILDOPTS`."""

    path: Path
    named_by: str

    def __str__(self) -> str:
        return f"{self.path} ({self.named_by})"


def login_file(conf: Conf) -> LoginFile | None:
    """Return the configured JAAS file, or None.

    In this order: ``java.security.auth.login.config`` given with ``-c``; that JVM property in
    ``pacemaker.childopts``, as in Storm's documentation; the key in another layer.
    """
    own = None if conf[KEY] is None else LoginFile(Path(conf[KEY]), KEY)
    if own is not None and conf.is_override(KEY):
        return own
    named = [o.removeprefix(_JVM_OPTION) for o in _childopts(conf) if o.startswith(_JVM_OPTION)]
    # The last one counts, as in a JVM.
    return LoginFile(Path(named[-1]), CHILDOPTS) if named and named[-1] else own


def in_one_layer(conf: Conf) -> Conf:
    """Return a configuration that names the same file after a `Conf.write`.

    Without ``-c``, the JVM property would count again, and is removed.
    """
    if conf[KEY] is None or not conf.is_override(KEY):
        return conf
    options = _childopts(conf)
    kept = [shlex.quote(option) for option in options if not option.startswith(_JVM_OPTION)]
    return conf if len(kept) == len(options) else conf.with_values({CHILDOPTS: kept or None})


def ignored_childopts(conf: Conf) -> list[str]:
    """Return the names of JVM options without effect; raises as `login_file`."""
    if conf[CHILDOPTS] == defaults()[CHILDOPTS]:
        return []
    return [
        option.partition("=")[0]
        for option in _childopts(conf)
        if not option.startswith(_JVM_OPTION)
    ]


def login(conf: Conf, *sections: str) -> Login:
    """Return the first of these sections; raises `ConfigError` without any."""
    method = conf["pacemaker.auth.method"]
    file = login_file(conf)
    if file is None:
        raise ConfigError(
            f"pacemaker.auth.method is {method}, which needs a JAAS file: set {KEY} to one"
        )
    logins = read(file.path, file.named_by)
    for section in sections:
        if section in logins:
            return logins[section]
    raise ConfigError(
        f"{file} has no section {' or '.join(sections)}, which pacemaker.auth.method {method} needs"
    )


def _childopts(conf: Conf) -> list[str]:
    value = conf[CHILDOPTS]
    texts = [value] if isinstance(value, str) else value or []
    try:
        return [option for text in texts for option in shlex.split(text)]
    except ValueError as error:
        raise ConfigError(f"{CHILDOPTS} has a quote without its second one") from error
