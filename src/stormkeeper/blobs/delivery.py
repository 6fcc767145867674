"""Puts a topology's code into a folder, as a supervisor needs it: as a whole, or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path

from stormkeeper.blobs import fetching, keys
from stormkeeper.blobs.drafts import BLOCK, Draft, storing
from stormkeeper.blobs.store import BlobStore
from stormkeeper.daemon.durable import sync_folder
from stormkeeper.errors import BlobNotFoundError, BlobStorageError, PeerError
from stormkeeper.state.storm.blobs import BlobEntry
from stormkeeper.state.storm.cluster import StormReads


def deliver(
    storm: StormReads,
    peers: fetching.Peers,
    topology_id: str,
    folder: Path,
    *,
    store: BlobStore | None = None,
    patience: fetching.Patience = fetching.PATIENCE,
) -> list[Path]:
    """Have a topology's code in a folder, in its newest version, and return the files.

    They are gathered in another folder beside it, whose name begins with a dot. What is there
    already, of an earlier try, is gone on with. Then it takes the folder's place. One process at a
    time may do it for a folder.

    Parameters
    ----------
    storm
        The cluster's state, which says who has the code and what is in it.
    peers
        Connects to them.
    topology_id
        Whose code.
    folder
        Where; what was there is replaced.
    store
        Where to look first.
    patience
        How long to go on with one of them.

    Raises
    ------
    BlobNotFoundError
        Nobody has ever had the code.
    PeerError
        Nobody who is alive has a part of it, or could send it.
    BlobStorageError
        The disk did not take it.
    StateError
        The cluster's state could not be read.
    """
    keys.check(topology_id)
    blobs = keys.of_topology(topology_id)
    entries = storm.blobs(blobs)
    gathered = folder.with_name(f".{folder.name}.part")
    with storing(folder.parent, "make a folder for code"):
        gathered.mkdir(mode=0o700, parents=True, exist_ok=True)
    for key, part in zip(blobs, keys.PARTS, strict=True):
        _gather(peers, key, entries.get(key), gathered / part, store=store, patience=patience)
    old = folder.with_name(f".{folder.name}.old")
    with storing(folder.parent, f"put code into {folder.name}"):
        sync_folder(gathered)
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        gathered.rename(folder)
        sync_folder(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    return [folder / part for part in keys.PARTS]


def _gather(
    peers: fetching.Peers,
    key: str,
    entry: BlobEntry | None,
    path: Path,
    *,
    store: BlobStore | None,
    patience: fetching.Patience,
) -> None:
    if entry is None or entry.record is None:
        raise BlobNotFoundError(f"nobody has ever had {key}: was its topology submitted?")
    if store is not None and store.get(key) == entry.record:
        return _copy(store, key, path)
    failures = []
    for nimbus in entry.alive:
        try:
            fetching.fetch_from(peers, nimbus, key, entry.record, path, patience=patience)
        except PeerError as error:
            failures.append(f"{nimbus}: {error}")
        else:
            return None
    raise PeerError(
        f"{key} could not be fetched from any Nimbus ({'; '.join(failures)})"
        if failures
        else f"no Nimbus that is alive has {key}: {', '.join(entry.held)} had it last"
    )


def _copy(store: BlobStore, key: str, path: Path) -> None:
    record, file = store.open(key)
    path.unlink(missing_ok=True)
    draft = Draft(path)
    try:
        with file, storing(store.folder, f"read {key}"):
            while block := file.read(BLOCK):
                draft.write(block)
        draft.finish()
    except BaseException:
        draft.discard()
        raise
    if draft.content().sha256 != record.sha256:
        draft.discard()
        store.drop_damaged(record)
        raise BlobStorageError(
            f"{key} was damaged in {store.folder}, and is fetched again: try again in a moment"
        )
