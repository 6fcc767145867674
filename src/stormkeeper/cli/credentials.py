"""``storm upload-credentials``: secrets that a topology's workers get."""

from __future__ import annotations

from typing import TextIO

import click

from stormkeeper.cli.effects import connected, json_option, print_json
from stormkeeper.cli.options import ConfigFault, conf_options, examples, faults
from stormkeeper.errors import ConfigError


@click.command(
    "upload-credentials",
    epilog=examples(
        "storm upload-credentials word-count -f credentials.txt",
        "gpg --decrypt credentials.gpg | storm upload-credentials word-count -f -",
        "storm upload-credentials word-count -f credentials.txt -u bob",
    ),
)
@click.argument("name")
@click.option(
    "-f",
    "--file",
    metavar="FILE",
    type=click.File(encoding="utf-8"),
    help="Read them from FILE, or from standard input with -: a line KEY=VALUE for each, or one"
    " JSON object.",
)
@click.option(
    "-e",
    "--credential",
    "pairs",
    metavar="KEY=VALUE",
    multiple=True,
    help="One of them; it wins over FILE. Repeatable. Whoever is on this machine can see it while"
    " the command runs, and the shell remembers it: use -f for what is secret.",
)
@click.option("-u", "--user", metavar="USER", help="Whose topology it is, if it is not yours.")
@json_option
@conf_options
def upload_credentials(
    *, name: str, file: TextIO | None, pairs: tuple[str, ...], user: str | None, as_json: bool
) -> None:
    """Give topology NAME credentials in the place of those that it has.

    They are kept in ZooKeeper, where its workers may read them. Workers are not started again. With
    --json it prints the topology's name and the keys, and no value.

    Exit code 1: there is no such topology, or Nimbus refused or was not reached. 2: wrong usage, or
    what was given is not what it should be.
    """
    with faults():
        credentials = _read(file, pairs)
    with connected() as connection:
        from stormkeeper.thrift.records import Credentials

        connection.nimbus.uploadNewCredentials(name, Credentials(credentials, topoOwner=user))
    if as_json:
        print_json(name=name, keys=sorted(credentials))
    else:
        click.echo(f"Uploaded new creds to topology: {name}")


def _read(file: TextIO | None, pairs: tuple[str, ...]) -> dict[str, str]:
    from stormkeeper.client import credentials

    given = {} if file is None else read(file)
    given |= credentials.from_pairs(pairs)
    if not given:
        raise ConfigFault("no credentials are given: name a file with -f FILE")
    return given


def read(file: TextIO) -> dict[str, str]:
    """Return the credentials that a file has.

    Raises
    ------
    ConfigError
        It cannot be read, or has what is none.
    """
    from stormkeeper.client import credentials

    where = "standard input" if file.name == "<stdin>" else file.name
    try:
        return credentials.from_text(file.read(), where)
    except UnicodeDecodeError:
        raise ConfigError(f"{where} is not UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror}") from error
