"""Collects operations of a transaction, for tests that write one operation after the other."""

from stormkeeper.state.storage import ANY_VERSION, Check, Create, Delete, SetData


class Transaction:
    """Operations that ``commit``, of a `StateWriter`, applies together."""

    def __init__(self, commit):
        self._commit = commit
        self.operations = []

    def check(self, path, version=ANY_VERSION):
        return self.add(Check(path, version))

    def create(self, path, data, *, ephemeral=False, sequential=False, workers_digest=None):
        return self.add(Create(path, data, ephemeral, sequential, workers_digest))

    def set_data(self, path, data, version=ANY_VERSION):
        return self.add(SetData(path, data, version))

    def delete(self, path, version=ANY_VERSION):
        return self.add(Delete(path, version))

    def add(self, operation):
        self.operations.append(operation)
        return self

    def commit(self):
        return self._commit(self.operations) if self.operations else []
