"""``storm blobstore``: shows and changes the blobs that Nimbuses keep."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from stormkeeper.cli.connections import connected, json_option
from stormkeeper.cli.options import Fault, command, command_group, exit_with
from stormkeeper.cli.output import note, print_json
from stormkeeper.daemon.durable import replace_file
from stormkeeper.errors import RefusedError
from stormkeeper.names import printable

if TYPE_CHECKING:
    from stormkeeper.client.blob_transfer import Blob

_file_option = click.option(
    "-f",
    "--file",
    metavar="FILE",
    type=click.File("rb"),
    default="-",
    help="Read the blob from FILE; by default from standard input.",
)


@command_group(
    "storm blobstore list",
    "storm blobstore create rates.csv -f rates.csv",
    "storm blobstore cat rates.csv -f copy.csv",
)
def blobstore() -> None:
    """Show and change the blobs of the cluster: named files, including topologies' code.

    A key consists of letters, digits, spaces, and any of . _ -
    """


@command(
    "storm blobstore list",
    "storm blobstore list rates.csv cities.csv",
    "storm blobstore list --json",
    name="list",
    group=blobstore,
)
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@json_option
def list_blobs(keys: tuple[str, ...], as_json: bool) -> None:
    """List all blobs, or the blobs KEY: key, version and access list, as Storm does.

    Exit code 1: a blob is missing; the others are listed.
    """
    missing: list[str] = []
    with connected() as connection:
        from stormkeeper.client import blob_transfer

        def described() -> Iterator[Blob]:
            for key in keys:
                try:
                    yield blob_transfer.describe_blob(connection, key)
                except RefusedError as error:
                    note(str(error))
                    missing.append(key)

        found = described() if keys else blob_transfer.all_blobs(connection)
        if as_json:
            print_json([asdict(blob) for blob in found])
        else:
            for blob in found:
                click.echo(printable(f"{blob.key} {blob.version} [{', '.join(blob.acl)}]"))
    exit_with(1 if missing else 0)


@command(
    "storm blobstore cat rates.csv", "storm blobstore cat rates.csv -f copy.csv", group=blobstore
)
@click.argument("key")
@click.option(
    "-f",
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to FILE, which is replaced when the blob is complete; by default to standard"
    " output.",
)
def cat(key: str, file: Path | None) -> None:
    """Print the blob KEY, or write the blob to a file."""
    with connected() as connection:
        from stormkeeper.client import blob_transfer

        if file is None:
            blob_transfer.download_blob(connection, key, sys.stdout.buffer.write)
            return
        try:
            with replace_file(file) as new:
                blob_transfer.download_blob(connection, key, new.write)
        except OSError as error:
            raise Fault(f"{file} cannot be written: {error.strerror}") from error


@command(
    "storm blobstore create rates.csv -f rates.csv",
    "make-rates | storm blobstore create rates.csv",
    group=blobstore,
)
@click.argument("key")
@_file_option
@click.option(
    "-r",
    "--replication-factor",
    "replication",
    metavar="N",
    type=click.IntRange(min=1),
    help="Number of Nimbuses with the blob, for Storm's Nimbus; Stormkeeper's all have it.",
)
def create(key: str, file: BinaryIO, replication: int | None) -> None:
    """Create the blob KEY."""
    with connected() as connection:
        from stormkeeper.client import blob_transfer

        size = blob_transfer.create_blob(connection, key, file, replication=replication)
    note(f"created {key} with {size} bytes")


@command("storm blobstore update rates.csv -f rates.csv", group=blobstore)
@click.argument("key")
@_file_option
def update(key: str, file: BinaryIO) -> None:
    """Replace the contents of the blob KEY."""
    with connected() as connection:
        from stormkeeper.client import blob_transfer

        size = blob_transfer.update_blob(connection, key, file)
    note(f"{key} has {size} bytes now")


@command("storm blobstore delete rates.csv", group=blobstore)
@click.argument("key")
def delete(key: str) -> None:
    """Delete the blob KEY, unless a topology uses it."""
    with connected() as connection:
        connection.nimbus.deleteBlob(key)
    note(f"deleted {key}")


@command(
    "storm blobstore replication rates.csv",
    "storm blobstore replication rates.csv --json",
    group=blobstore,
)
@click.argument("key")
@click.option("--read", "is_read", is_flag=True, help="Only print the number, as without -r.")
@click.option("--update", "is_update", is_flag=True, help="Change the number, as -r alone does.")
@click.option(
    "-r",
    "--replication-factor",
    "replication",
    metavar="N",
    type=click.IntRange(min=1),
    help="Set the number, for Storm's Nimbus; Stormkeeper's all have every blob.",
)
@json_option
def replication(
    *, key: str, is_read: bool, is_update: bool, replication: int | None, as_json: bool
) -> None:
    """Print the number of Nimbuses with the blob KEY, or change the number with -r."""
    if is_read and (is_update or replication is not None):
        raise click.UsageError("--read changes nothing: leave it out with --update or -r")
    if is_update and replication is None:
        raise click.UsageError("--update needs -r N")
    with connected() as connection:
        if replication is None:
            count = connection.nimbus.getBlobReplication(key)
        else:
            count = connection.nimbus.updateBlobReplication(key, replication)
    if as_json:
        print_json({"key": key, "replication": count})
    else:
        click.echo(f"Current replication factor {count}")
